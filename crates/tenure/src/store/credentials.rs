//! Users and passwords of stores, which may change while a program runs.

use std::error::Error as StdError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Refusals;
use crate::{Error, ErrorKind};

/// Time after which a login that is not given yet is asked for anew.
const LONGEST_ASK: Duration = Duration::from_secs(30);

/// A user and a password. A missing one is taken from the store's URL.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
}

impl Login {
    /// Makes a login of a user and a password.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: Some(password.into()) }
    }

    /// Makes a login of a password alone.
    pub fn of_password(password: impl Into<String>) -> Self {
        Self { user: None, password: Some(password.into()) }
    }

    /// Makes a login of a user alone.
    pub fn of_user(user: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: None }
    }

    fn or(self, other: &Self) -> Self {
        Self { user: self.user.or_else(|| other.user.clone()), password: self.password.or_else(|| other.password.clone()) }
    }
}

/// Without the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "***");
        f.debug_struct("Login").field("user", &self.user).field("password", &password).finish()
    }
}

/// How a store logs in: with a login that stays, with a password file, or with a function that is asked.
///
/// A file is read again for each new connection, and a function is asked again. If the server refuses the login, they are
/// asked once more. So a password can be changed while leases are held. A connection that stands is not logged in anew.
///
/// ```
/// use tenure::store::{Credentials, Login};
///
/// let fixed = Credentials::from(Login::new("app", "secret"));
/// let file = Credentials::password_file("/run/secrets/redis").with_user("app");
/// let asked = Credentials::asking("the token service", || async {
///     Ok::<_, std::io::Error>(Login::of_password("a new token"))
/// });
/// # let _ = (fixed, file, asked);
/// ```
///
/// # When a login is refused
/// A login that stays is refused for good. One of a file or a function is first asked for again, and tried if it is
/// another. If an earlier login at the same server was accepted, or the credentials are [`patient`](Credentials::patient),
/// refusals of up to 120 s are [`Unavailable`](ErrorKind::Unavailable): the server may know the new password before the file
/// has it. A wait goes on meanwhile. Later they are [`Refused`](ErrorKind::Refused).
///
/// # Clones
/// Clones share one question: while a file is read or a function is asked, nobody asks again, for 30 s at most.
#[derive(Clone)]
pub struct Credentials {
    source: Arc<Source>,
    /// Taken for what the login of the source lacks.
    rest: Login,
    /// Of one server.
    refusals: Refusals,
    /// The first refusals are taken for an outage as well.
    is_patient: bool,
}

enum Source {
    Fixed(Login),
    Asked { name: String, ask: Ask, asked: Mutex<Option<Asked>> },
}

type Ask = Box<dyn Fn() -> BoxFuture<'static, Result<Login, Error>> + Send + Sync>;

/// A login that somebody asks for.
struct Asked {
    answer: Shared<BoxFuture<'static, Result<Login, Error>>>,
    task: AbortHandle,
    begun: Instant,
    /// The task ends with it.
    runtime: Id,
}

impl Credentials {
    /// Reads the password from a file, again for each login. Line ends behind it are left out.
    ///
    /// The file is read on a thread of its own. While it cannot be read, or is empty, the store is
    /// [`Unreachable`](ErrorKind::Unreachable).
    pub fn password_file(path: impl Into<PathBuf>) -> Self {
        let path: PathBuf = path.into();
        let name = format!("the password file {}", path.display());
        Self::asked(name, Box::new(move || read_aside(path.clone()).boxed()))
    }

    /// Asks a function, again for each login. Messages call it by `name`, as in "the token service gave no login".
    ///
    /// It is run on the runtime of the call that needs a login, which waits for it for as long as the call may take. If the
    /// call is dropped or ends before, the function goes on, and the next call has its answer.
    ///
    /// # Errors
    /// The store is [`Unreachable`](ErrorKind::Unreachable) while the function fails or does not answer. It is
    /// [`Refused`](ErrorKind::Refused) if the function fails with an [`Error`] that no repetition mends.
    pub fn asking<F, E>(name: impl Into<String>, ask: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Login, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let failed = |error: E| -> Error {
            let error: Box<dyn StdError + Send + Sync> = error.into();
            let is_final = error.downcast_ref::<Error>().is_some_and(|error| !error.is_transient());
            let kind = if is_final { ErrorKind::Refused } else { ErrorKind::Unreachable };
            Error::new(kind, "it failed").with_source(error)
        };
        Self::asked(name.into(), Box::new(move || ask().map(move |answer| answer.map_err(failed)).boxed()))
    }

    fn asked(name: String, ask: Ask) -> Self {
        let source = Arc::new(Source::Asked { name, ask, asked: Mutex::default() });
        Self { source, ..Self::default() }
    }

    /// Takes refusals for an outage from the first login on, as if a login had been accepted before: for a program that
    /// starts and waits. It may start while the password is changed.
    #[must_use]
    pub fn patient(self) -> Self {
        let refusals = Refusals::default();
        refusals.accepted();
        Self { refusals, is_patient: true, ..self }
    }

    /// Logs in as this user, unless the function names another.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.rest.user = Some(user.into());
        self
    }

    /// Returns these credentials for one server, with what they lack taken from others that stay: those of the store's
    /// URL. For authors of stores.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let theirs = other.fixed().unwrap_or_else(|| other.rest.clone());
        let (source, rest) = (Arc::clone(&self.source), self.rest.clone().or(&theirs));
        // Another server has refused nothing.
        let anew = Self { source, rest, ..Self::default() };
        if self.is_patient { anew.patient() } else { anew }
    }

    /// The login, if it stays. For authors of stores.
    pub fn fixed(&self) -> Option<Login> {
        match &*self.source {
            Source::Fixed(login) => Some(login.clone().or(&self.rest)),
            Source::Asked { .. } => None,
        }
    }

    /// Asks for the login. For authors of stores, who bound the time.
    ///
    /// # Errors
    /// [`Unreachable`](ErrorKind::Unreachable) or [`Refused`](ErrorKind::Refused), with the name of what gave no login.
    ///
    /// # Cancel safety
    /// If the future is dropped, the question goes on for other callers.
    pub async fn login(&self) -> Result<Login, Error> {
        match &*self.source {
            Source::Fixed(login) => Ok(login.clone().or(&self.rest)),
            Source::Asked { name, ask, asked } => {
                let answer = begin(ask, &mut lock(asked));
                let login = answer.await.map_err(|error| error.context(format_args!("{name} gave no login")))?;
                Ok(login.or(&self.rest))
            }
        }
    }

    /// The error of a call that had to wait too long for the login. `None` if nobody asks for one now. For authors of
    /// stores.
    pub fn unanswered(&self) -> Option<Error> {
        let Source::Asked { name, asked, .. } = &*self.source else { return None };
        let is_open = lock(asked).as_ref().is_some_and(|asked| !asked.task.is_finished());
        is_open.then(|| Error::unreachable(format!("{name} gave no login in time")))
    }

    /// Logs in with `attempt`. If the login is refused, asks for it once more, and tries that if it is another. For authors
    /// of stores, who bound the time.
    ///
    /// `attempt` fails with [`Refused`](ErrorKind::Refused) if the server takes no such login.
    ///
    /// # Errors
    /// Those of `attempt`, and of [`login`](Credentials::login). A refusal may be
    /// [`Unavailable`](ErrorKind::Unavailable) for a while, as said above.
    ///
    /// # Cancel safety
    /// That of `attempt`.
    pub async fn log_in<T, F: Future<Output = Result<T, Error>>>(&self, attempt: impl Fn(Login) -> F) -> Result<T, Error> {
        self.log_in_with(|error| Some(error), attempt).await
    }

    /// As [`log_in`](Credentials::log_in), for an attempt with errors of its own. `error` finds the one about the login in
    /// them.
    ///
    /// # Errors
    /// As [`log_in`](Credentials::log_in).
    ///
    /// # Cancel safety
    /// That of `attempt`.
    pub async fn log_in_with<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        error: fn(&mut E) -> Option<&mut Error>,
        attempt: impl Fn(Login) -> F,
    ) -> Result<T, E> {
        let login = self.login().await?;
        let mut outcome = attempt(login.clone()).await;
        let is_refused = |outcome: &mut Result<T, E>| {
            let error = outcome.as_mut().err().and_then(error);
            error.is_some_and(|error| error.kind() == ErrorKind::Refused)
        };
        if is_refused(&mut outcome) && self.fixed().is_none() {
            let again = self.login().await?;
            if again != login {
                outcome = attempt(again).await;
            }
            if is_refused(&mut outcome)
                && let Some(refusal) = outcome.as_mut().err().and_then(error)
            {
                *refusal = self.refusals.judge(refusal.clone());
            }
        }
        if outcome.is_ok() {
            self.refusals.accepted();
        }
        outcome
    }
}

/// The answer to a question that is open, or to a new one.
fn begin(ask: &Ask, asked: &mut Option<Asked>) -> Shared<BoxFuture<'static, Result<Login, Error>>> {
    let runtime = Handle::current().id();
    if let Some(open) = asked
        && open.runtime == runtime
        && !open.task.is_finished()
    {
        if open.begun.elapsed() < LONGEST_ASK {
            return open.answer.clone();
        }
        open.task.abort();
    }
    let task = tokio::spawn(ask());
    let (handle, ended) = (task.abort_handle(), |_| Err(Error::unreachable("it ended without an answer")));
    let answer = task.map(move |joined| joined.unwrap_or_else(ended)).boxed().shared();
    *asked = Some(Asked { answer: answer.clone(), task: handle, begun: Instant::now(), runtime });
    answer
}

/// A disk that hangs must not hold up the runtime.
async fn read_aside(path: PathBuf) -> Result<Login, Error> {
    let (answer, read) = oneshot::channel();
    let read_it = move || {
        // The caller may have gone.
        let _ = answer.send(read_password(&path));
    };
    let unread = |error: std::io::Error| Error::unreachable("it cannot be read").with_source(error);
    thread::Builder::new().name("tenure-password".into()).spawn(read_it).map_err(unread)?;
    read.await.unwrap_or_else(|_| Err(Error::unreachable("it cannot be read")))
}

fn read_password(path: &Path) -> Result<Login, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::unreachable("it cannot be read").with_source(error))?;
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err(Error::unreachable("it is empty").with_hint("write the password into it")),
        password => Ok(Login::of_password(password)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A login that stays.
impl From<Login> for Credentials {
    fn from(login: Login) -> Self {
        let source = Arc::new(Source::Fixed(login));
        Self { source, rest: Login::default(), refusals: Refusals::default(), is_patient: false }
    }
}

/// Nobody's.
impl Default for Credentials {
    fn default() -> Self {
        Login::default().into()
    }
}

/// Without a password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.source {
            Source::Fixed(login) => write!(f, "Credentials({:?})", login.clone().or(&self.rest)),
            Source::Asked { name, .. } => write!(f, "Credentials({name})"),
        }
    }
}
