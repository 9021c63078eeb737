//! Where settings come from: flags, then the environment, then the user's config file, then the
//! machine's, then defaults.

mod file;
mod password;
mod url;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use self::file::File;
pub(crate) use self::password::Password;
use self::password::{Secret, absolute};
pub(crate) use self::url::{has_password, without_password};
use crate::args::Common;
use crate::exit::{CONFIG, Failure, USAGE, Voice};

/// The variables that carry secrets; children do not get them.
pub(crate) const SECRETS: [&str; 4] =
    ["TENURE_PASSWORD", "TENURE_PASSWORD_FILE", "TENURE_SENTINEL_PASSWORD", "TENURE_SENTINEL_PASSWORD_FILE"];
/// The ttl where nothing else was said.
pub(crate) const TTL: Duration = Duration::from_secs(30);
/// The variable that names the store.
pub(crate) const STORE: &str = "TENURE_STORE";

/// The config file of the machine. A user's own comes first, key by key.
const MACHINE: &str = "/etc/tenure/config.toml";

/// Settings before any default of a single command.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) store: OsString,
    pub(crate) store_from: Source,
    /// The config files that name the store and the ttl.
    store_file: Option<PathBuf>,
    ttl_file: Option<PathBuf>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) sentinel_password: Option<Password>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) kill_after: Option<Duration>,
    pub(crate) label: Option<String>,
    pub(crate) voice: Voice,
}

/// Where the store was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Flag,
    Variable,
    File,
    Default,
}

/// The part of an environment that nobody else is to read: what may hold a password.
#[derive(Default)]
pub(crate) struct Handed(Vec<(String, OsString)>);

impl Handed {
    const NAMES: [&str; 3] = [SECRETS[0], SECRETS[2], STORE];

    /// That of our environment.
    pub(crate) fn ours() -> Self {
        Self(Self::NAMES.into_iter().filter_map(|name| Some((name.to_owned(), env::var_os(name)?))).collect())
    }

    /// Keeps it out of the environment of `command`.
    pub(crate) fn hide(&self, command: &mut Command) {
        for (name, _) in &self.0 {
            command.env_remove(name);
        }
    }

    pub(crate) fn into_words(self) -> Vec<OsString> {
        self.0.into_iter().flat_map(|(name, value)| [name.into(), value]).collect()
    }

    pub(crate) fn from_words(words: Vec<OsString>) -> Self {
        let mut words = words.into_iter();
        Self(std::iter::from_fn(|| Some((words.next()?.to_string_lossy().into_owned(), words.next()?))).collect())
    }

    /// A variable of it, or else of our environment, that is set to something.
    fn variable(&self, name: &str) -> Option<OsString> {
        let handed = self.0.iter().find(|(handed, _)| handed == name).map(|(_, value)| value.clone());
        handed.or_else(|| env::var_os(name)).filter(|value| !value.is_empty())
    }
}

impl Settings {
    /// Reads the environment and the config file.
    pub(crate) fn load(common: &Common) -> Result<Self, Failure> {
        Self::handed(common, &Handed::default())
    }

    /// The same, where a part of the environment was handed to us in another way.
    pub(crate) fn handed(common: &Common, handed: &Handed) -> Result<Self, Failure> {
        let user = base("XDG_CONFIG_HOME", ".config").map(|base| base.join("tenure/config.toml"));
        let files = user.into_iter().chain([MACHINE.into()]).map(|path| File::read(&path));
        let settings = Self::of(common, handed, files.collect::<Result<_, _>>()?)?;
        if common.store.as_deref().is_some_and(has_password) {
            let what = "the password in --store can be read by every user of this machine, with `ps`";
            settings.voice.say(format_args!("{what}; put it into TENURE_PASSWORD, TENURE_STORE or the config file"));
        }
        Ok(settings)
    }

    /// The settings by files, of which an earlier one comes first.
    fn of(common: &Common, handed: &Handed, files: Vec<File>) -> Result<Self, Failure> {
        let flag = common.store.clone().map(|store| (store, Source::Flag));
        let explicit = flag.or_else(|| Some((handed.variable(STORE)?, Source::Variable)));
        let (store_file, ttl_file) = (store_file(&files, explicit.as_ref()), files.iter().position(|file| file.ttl.is_some()));
        let path = |index: usize| files.get(index).map(|file| file.path.clone());
        let (store_path, ttl_path) = (store_file.and_then(path), ttl_file.and_then(path));
        let mut all = File::default();
        for (index, file) in files.into_iter().enumerate() {
            if Some(index) == store_file {
                // Credentials of a file belong to the store of that file: another store must not be
                // sent them.
                (all.store, all.username, all.password) = (file.store, file.username, file.password);
            }
            all.ttl = all.ttl.or(file.ttl);
            all.wait = all.wait.or(file.wait);
            all.kill_after = all.kill_after.or(file.kill_after);
            all.label = all.label.or(file.label);
        }
        let File { username, ttl, wait, kill_after, label, .. } = all;
        let (store, store_from) = match (all.store, explicit) {
            // The store that was named may lack the password that the file has.
            (Some(store), Some((_, from))) => (store.into(), from),
            (Some(store), None) => (store.into(), Source::File),
            (None, Some(explicit)) => explicit,
            (None, None) => (default_store()?, Source::Default),
        };
        let sentinel_password = password(handed, SECRETS[2], SECRETS[3])?;
        let password = password(handed, SECRETS[0], SECRETS[1])?.or(all.password);
        password.iter().chain(&sentinel_password).try_for_each(Password::check)?;
        let voice = Voice::new(common.quiet, common.verbose);
        let (store_file, ttl_file) = (store_path, ttl_path);
        Ok(Self {
            store,
            store_from,
            store_file,
            ttl_file,
            username,
            password,
            sentinel_password,
            ttl,
            wait,
            kill_after,
            label,
            voice,
        })
    }

    /// A failure that may be due to the store's URL, told with where that was written.
    pub(crate) fn bad_store(&self, failure: Failure) -> Failure {
        match (self.store_from, failure.text) {
            (Source::File, text) => in_file(self.store_file.as_deref(), "store", Failure { text, ..failure }),
            (Source::Variable, Some(text)) if failure.code == USAGE => Failure::usage(format!("{STORE}: {text}")),
            (_, text) => Failure { text, ..failure },
        }
    }

    /// A failure that may be due to the usual ttl, told with where that was written.
    pub(crate) fn bad_ttl(&self, failure: Failure) -> Failure {
        in_file(self.ttl_file.as_deref(), "ttl", failure)
    }
}

/// Makes wrong usage a wrong configuration if it stands in a file.
fn in_file(file: Option<&Path>, key: &str, failure: Failure) -> Failure {
    match (file, &failure.text) {
        (Some(file), Some(text)) if failure.code == USAGE => {
            Failure::new(CONFIG, format!("the config file {}: {key}: {text}", file.display()))
        }
        _ => failure,
    }
}

/// The file that has the store that is to be used: the first that names one, or names the explicit
/// one.
fn store_file(files: &[File], explicit: Option<&(OsString, Source)>) -> Option<usize> {
    files.iter().position(|file| match (&file.store, explicit) {
        (Some(store), Some((explicit, _))) => {
            store.as_str() == explicit.as_os_str() || without_password(store.as_ref()) == *explicit
        }
        (store, None) => store.is_some(),
        (None, _) => false,
    })
}

/// A base directory of the XDG specification, which ignores relative ones.
fn base(name: &str, under_home: &str) -> Option<PathBuf> {
    let given = env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    given.or_else(|| Some(env::home_dir().filter(|home| home.is_absolute())?.join(under_home)))
}

fn default_store() -> Result<OsString, Failure> {
    let base = base("XDG_STATE_HOME", ".local/state").ok_or_else(|| {
        Failure::new(CONFIG, "no place for the lock file is known, because neither XDG_STATE_HOME nor HOME is set; give --store")
    })?;
    let mut store = OsString::from("sqlite:");
    store.push(base.join("tenure/locks.db"));
    Ok(store)
}

/// The password that one of two variables of the environment has.
fn password(handed: &Handed, here: &str, file: &'static str) -> Result<Option<Password>, Failure> {
    if let Some(password) = secret(handed, here)? {
        return Ok(Some(Password::Here(password)));
    }
    Ok(handed.variable(file).map(|path| Password::File { path: absolute(path), named_by: file }))
}

/// The secret that a variable holds.
fn secret(handed: &Handed, name: &str) -> Result<Option<Secret>, Failure> {
    let bad = |_| Failure::new(CONFIG, format!("{name} is not UTF-8; set it again"));
    handed.variable(name).map(|text| text.into_string().map(Secret).map_err(bad)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(store: Option<&str>, files: [&str; 2]) -> Settings {
        let common = Common { store: store.map(OsString::from), quiet: false, verbose: false };
        let files = files.iter().zip(["/u", "/m"]).map(|(text, path)| File { path: path.into(), ..File::parse(text).unwrap() });
        Settings::of(&common, &Handed::default(), files.collect()).unwrap()
    }

    fn password(settings: &Settings) -> Option<&str> {
        settings
            .password
            .as_ref()
            .and_then(|password| if let Password::Here(Secret(text)) = password { Some(&**text) } else { None })
    }

    #[test]
    fn the_users_file_comes_before_that_of_the_machine() {
        let machine = "store = \"redis://m\"\npassword = \"pw\"\nttl = 60\nlabel = \"machine\"";
        let both = settings(None, ["ttl = 10", machine]);
        assert_eq!(
            (both.store.to_str(), both.ttl, both.label.as_deref()),
            (Some("redis://m"), Some(Duration::from_secs(10)), Some("machine"))
        );
        assert_eq!((password(&both), &both.ttl_file, &both.store_file), (Some("pw"), &Some("/u".into()), &Some("/m".into())));
        let own = settings(None, ["store = \"redis://u\"", machine]);
        assert_eq!((own.store.to_str(), password(&own)), (Some("redis://u"), None), "the password of another store");
    }

    /// So it is for a command within a command, which gets the store without its password.
    #[test]
    fn a_store_that_is_named_as_in_the_file_has_its_password() {
        for (file, named) in [
            ("store = \"redis://m\"\npassword = \"pw\"", "redis://m"),
            ("store = \"redis://u@m/2\"\npassword = \"pw\"", "redis://u@m/2"),
        ] {
            assert_eq!(password(&settings(Some(named), ["", file])), Some("pw"));
            assert_eq!(password(&settings(Some("redis://other"), ["", file])), None);
        }
        let inside = settings(Some("redis://u@m"), ["store = \"redis://u:pw@m\"", ""]);
        assert_eq!(inside.store, OsString::from("redis://u:pw@m"));
    }
}
