//! From a store URL to a locker.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use tenure::compose::quorum::Quorum;
use tenure::store::Login;
use tenure::{Locker, LockerBuilder};
use tenure_redis::Advice;
use tenure_stores::Options;

use crate::args::{Admit, Migration};
use crate::config::{Password, Settings, Source, TTL, without_password};
use crate::exit::{DAMAGED, Failure, NOT_ACQUIRED};
use crate::output::print;

/// Reads how to open the store, once for all tries. If the user `waits`, a refused login of a password file is an outage at first.
pub(crate) fn prepare(settings: &Settings, waits: bool) -> Result<Options, Failure> {
    let options = options_of(settings, waits).and_then(|options| checked(options, settings.store_from));
    options.map_err(|failure| settings.bad_store(failure))
}

/// Opens the store; its first contact is made here.
pub(crate) async fn open(settings: &Settings, options: Options) -> Result<LockerBuilder, Failure> {
    options.open().await.map(Locker::builder).map_err(|error| settings.bad_store(error.into()))
}

/// A locker for single steps; `None` if the store is a file that nobody has made yet.
pub(crate) async fn open_existing(settings: &Settings, ttl: Option<Duration>) -> Result<Option<Locker>, Failure> {
    tell_which(settings).await;
    let options = prepare(settings, false)?;
    if is_missing(&options) {
        return Ok(None);
    }
    let builder = open(settings, options).await?.ttl(ttl.or(settings.ttl).unwrap_or(TTL)).safety_margin(Duration::ZERO);
    let locker = builder.build().map_err(|error| match ttl {
        None => settings.bad_ttl(error.into()),
        Some(_) => error.into(),
    });
    locker.map(Some)
}

/// Whether the store is a file that does not exist: nothing is held there, and looking must not
/// create it.
fn is_missing(options: &Options) -> bool {
    let Options::Sqlite(file) = options else { return false };
    file.path().metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Identity of this store among others of this machine.
pub(crate) fn identity(settings: &Settings) -> OsString {
    lock_file(settings).map_or_else(|| settings.store.clone(), Into::into)
}

/// The store for a command that runs under the lock: the same from any directory, and without a
/// password.
pub(crate) fn for_child(settings: &Settings) -> OsString {
    let Some(path) = lock_file(settings) else { return without_password(&settings.store) };
    let parameters = settings.store.as_bytes().iter().position(|b| *b == b'?').map(|at| &settings.store.as_bytes()[at..]);
    OsString::from_vec([b"sqlite:", path.as_os_str().as_bytes(), parameters.unwrap_or_default()].concat())
}

/// Says with `-v` which store is used, before it answers or not. Of a URL that cannot be read, nobody knows what is a password.
pub(crate) async fn tell_which(settings: &Settings) {
    if Options::parse(&settings.store).is_ok() {
        let told = settings.voice.detail_aside(format_args!("the store is {}", shown(settings)));
        told.finish().await;
    }
}

/// The store in words, for messages.
pub(crate) fn shown(settings: &Settings) -> String {
    let store = for_child(settings);
    match settings.store_from {
        Source::Default => format!("{}, the file of this user alone", store.display()),
        _ => store.display().to_string(),
    }
}

/// Says, of a command for several hosts, that the private file excludes nobody else.
pub(crate) fn tell_whom_it_excludes(settings: &Settings) {
    if settings.store_from == Source::Default {
        let what = format!("other users and other hosts are not excluded: the lock is in {}", shown(settings));
        settings.voice.say(format_args!("{what}; name a store for all of them with --store or TENURE_STORE"));
    }
}

/// Refuses a lock file that is hardly the one that was meant.
fn checked(options: Options, from: Source) -> Result<Options, Failure> {
    let Options::Sqlite(file) = &options else { return Ok(options) };
    let path = file.path();
    if path.is_relative() && from != Source::Flag {
        // It would be another file in every directory, and two files exclude nobody.
        let what = format!("the path {:?} is relative, so it would be another file in every directory", path.display());
        return Err(Failure::usage(format!("{what}; write an absolute path, sqlite:/...")));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent {
        // Only that of the default is made: a mistyped one would exclude nobody.
        Some(parent) if from != Source::Default && is_not_there(parent) => {
            let what = format!("the lock file {} cannot be used: there is no directory {}", path.display(), parent.display());
            Err(Failure::new(DAMAGED, format!("{what}; correct the path, or make it: mkdir -p {}", parent.display())))
        }
        _ => Ok(options),
    }
}

fn is_not_there(path: &Path) -> bool {
    path.metadata().is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

/// Reads the URL, and adds the login of the settings.
fn options(settings: &Settings) -> Result<Options, Failure> {
    options_of(settings, false)
}

fn options_of(settings: &Settings, waits: bool) -> Result<Options, Failure> {
    let mut options = Options::parse(&settings.store)?;
    let login = |password: &Password| if waits { password.credentials().patient() } else { password.credentials() };
    let password = settings.password.as_ref().map(login);
    let credentials = match (password, &settings.username) {
        (Some(password), Some(user)) => Some(password.with_user(user)),
        (Some(password), None) => Some(password),
        (None, user) => user.as_ref().map(|user| Login::of_user(user).into()),
    };
    if let Some(credentials) = credentials {
        options = options.credentials(credentials);
    }
    let Options::Redis(mut options) = options else { return Ok(options) };
    if let Some(password) = &settings.sentinel_password {
        options = options.sentinel_credentials(login(password));
    }
    let voice = settings.voice;
    Ok(Options::Redis(options.on_advice(move |server, advice| {
        let what = format!("warning about {server}: {advice}; quiet=yes in the store URL ends this warning");
        // What most servers do is no news for each run.
        drop(if advice == Advice::Forgets { voice.detail_aside(what) } else { voice.say_aside(what) });
    })))
}

/// The path of the lock file, if the store is one.
fn lock_file(settings: &Settings) -> Option<PathBuf> {
    match Options::parse(&settings.store) {
        Ok(Options::Sqlite(options)) => Some(absolute(options.path()).unwrap_or_else(|_| options.path().to_owned())),
        _ => None,
    }
}

/// Lets the servers of a quorum vote at once.
pub(crate) async fn admit(args: &Admit) -> Result<u8, Failure> {
    let settings = Settings::load(&args.common)?;
    let admitted = async {
        match options(&settings)? {
            Options::Redis(options) => {
                let quorum = options.quorum().await?;
                if !args.force {
                    refuse_while_a_lease_may_stand(&quorum).await?;
                }
                Ok(quorum.admit().await?)
            }
            _ => Err(no_quorum("so nothing has to be admitted")),
        }
    };
    admitted.await.map_err(|failure: Failure| settings.bad_store(failure))?;
    settings.voice.say(format_args!("every server of {} votes", shown(&settings)));
    Ok(0)
}

/// The operator may not know of every holder.
async fn refuse_while_a_lease_may_stand(quorum: &Quorum) -> Result<(), Failure> {
    for (server, memory) in quorum.memories().await {
        let why = match memory.map(|memory| memory.end_of_all()) {
            Ok(Duration::ZERO) => continue,
            Ok(left) => format!("{server} knows of a lease that lasts for {left:.0?}"),
            Err(error) => format!("{server} does not say which leases it knows ({error})"),
        };
        let fix = "look at `tenure show`, wait for its end or break it, or say --force";
        return Err(Failure::new(NOT_ACQUIRED, format!("{why}, so a name might have two holders; {fix}")));
    }
    Ok(())
}

/// The servers of a quorum, whether they answer or not.
pub(crate) fn quorum(settings: &Settings) -> Result<Quorum, Failure> {
    let quorum = match options(settings) {
        Ok(Options::Redis(options)) => options.quorum_later().map_err(Failure::from),
        Ok(_) => Err(no_quorum("so none of several servers votes")),
        Err(failure) => Err(failure),
    };
    quorum.map_err(|failure| settings.bad_store(failure))
}

fn no_quorum(so: &str) -> Failure {
    Failure::usage(format!("the store is no quorum of Redis servers, {so}"))
}

/// Prints the statements that make the table of the store.
pub(crate) fn migration(args: &Migration) -> Result<u8, Failure> {
    let settings = Settings::load(&args.common)?;
    print(&statements(&settings).map_err(|failure| settings.bad_store(failure))?)?;
    Ok(0)
}

fn statements(settings: &Settings) -> Result<String, Failure> {
    match options(settings)? {
        #[cfg(feature = "postgres")]
        Options::Postgres(options) => Ok(options.migration()),
        #[cfg(feature = "mysql")]
        Options::MySql(options) => Ok(options.migration()),
        _ => Err(Failure::usage("this store has no table that you would make; only postgres: and mysql: have one")),
    }
}
