//! Where settings come from: flags, then the environment, then the config file, then defaults.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tenure::{Owner, parse_duration};
use toml::{Table, Value};

use crate::args::Common;
use crate::exit::{CONFIG, Failure, USAGE, Voice};

/// The variables that carry secrets; children do not get them.
pub(crate) const SECRETS: [&str; 2] = ["TENURE_PASSWORD", "TENURE_PASSWORD_FILE"];
/// The variable that names the store.
pub(crate) const STORE: &str = "TENURE_STORE";

/// What was set, before any default of a single command.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) store: OsString,
    pub(crate) store_from: Source,
    /// The config file, whether it is there or not.
    file: Option<PathBuf>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
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

/// A text that does not show itself.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The part of an environment that nobody else is to read: what may hold a password.
#[derive(Default)]
pub(crate) struct Handed(Vec<(String, OsString)>);

impl Handed {
    const NAMES: [&str; 2] = [SECRETS[0], STORE];

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
        let path = base("XDG_CONFIG_HOME", ".config").map(|base| base.join("tenure/config.toml"));
        let file = path.as_deref().map(File::read).transpose()?.unwrap_or_default();
        let flag = common.store.clone().map(|store| (store, Source::Flag));
        let explicit = flag.or_else(|| Some((handed.variable(STORE)?, Source::Variable)));
        // Credentials of the file belong to the store of the file: another store must not be sent them.
        let (username, kept) = if explicit.is_some() { (None, None) } else { (file.username, file.password) };
        let (store, store_from) = match (explicit, file.store) {
            (Some(explicit), _) => explicit,
            (None, Some(store)) => (store.into(), Source::File),
            (None, None) => (default_store()?, Source::Default),
        };
        let password = match password(handed)? {
            Some(password) => Some(password),
            None => kept.map(Password::get).transpose()?,
        };
        let File { ttl, wait, kill_after, label, .. } = file;
        let voice = Voice::new(common.quiet, common.verbose);
        Ok(Self { store, store_from, file: path, username, password, ttl, wait, kill_after, label, voice })
    }

    /// A failure that may be due to the store's URL, told with where that was written.
    pub(crate) fn bad_store(&self, failure: Failure) -> Failure {
        match (self.store_from, failure.text) {
            (Source::File, text) => self.in_file("store", Failure { text, ..failure }),
            (Source::Variable, Some(text)) if failure.code == USAGE => Failure::usage(format!("{STORE}: {text}")),
            (_, text) => Failure { text, ..failure },
        }
    }

    /// A failure that may be due to the usual ttl, told with where that was written.
    pub(crate) fn bad_ttl(&self, failure: Failure) -> Failure {
        if self.ttl.is_some() { self.in_file("ttl", failure) } else { failure }
    }

    /// What would be wrong usage on the command line is a wrong configuration here.
    fn in_file(&self, key: &str, failure: Failure) -> Failure {
        match (&self.file, &failure.text) {
            (Some(file), Some(text)) if failure.code == USAGE => {
                Failure::new(CONFIG, format!("the config file {}: {key}: {text}", file.display()))
            }
            _ => failure,
        }
    }
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

/// The password of the environment.
fn password(handed: &Handed) -> Result<Option<Secret>, Failure> {
    if let Some(password) = handed.variable(SECRETS[0]) {
        let bad = |_| Failure::new(CONFIG, "TENURE_PASSWORD is not UTF-8; set it again");
        return Ok(Some(Secret(password.into_string().map_err(bad)?)));
    }
    handed.variable(SECRETS[1]).map(|path| password_file(Path::new(&path), "TENURE_PASSWORD_FILE")).transpose()
}

fn password_file(path: &Path, named_by: &str) -> Result<Secret, Failure> {
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::new(
            CONFIG,
            format!("the password file {} of {named_by} cannot be read, {error}; check the path", path.display()),
        )
    })?;
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err(Failure::new(
            CONFIG,
            format!("the password file {} of {named_by} is empty; write the password into it", path.display()),
        )),
        password => Ok(Secret(password.to_owned())),
    }
}

/// What the config file says.
#[derive(Debug, Default)]
struct File {
    store: Option<String>,
    username: Option<String>,
    password: Option<Password>,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    kill_after: Option<Duration>,
    label: Option<String>,
}

/// A password, read from its file only if it is used.
#[derive(Debug)]
enum Password {
    Here(Secret),
    File(PathBuf),
}

impl Password {
    fn get(self) -> Result<Secret, Failure> {
        match self {
            Self::Here(secret) => Ok(secret),
            Self::File(path) => password_file(&path, "password_file in the config file"),
        }
    }
}

impl File {
    /// Reads the file; one that does not exist says nothing.
    fn read(path: &Path) -> Result<Self, Failure> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Self::default()),
            Err(error) => {
                let what = format!("the config file {} cannot be read, {error}; mend or remove it", path.display());
                return Err(Failure::new(CONFIG, what));
            }
        };
        Self::parse(&text).map_err(|why| Failure::new(CONFIG, format!("the config file {}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error| not_toml(text, &error))?;
        let mut file = Self::default();
        for (key, value) in table {
            match key.as_str() {
                "store" => file.store = Some(string(&key, value)?),
                "username" => file.username = Some(string(&key, value)?),
                "password" => file.password = Some(Password::Here(Secret(string(&key, value)?))),
                "password_file" => file.password = Some(Password::File(string(&key, value)?.into())),
                "ttl" => file.ttl = Some(span(&key, &value)?),
                "wait" => file.wait = Some(span(&key, &value)?),
                "kill_after" => file.kill_after = Some(span(&key, &value)?),
                "label" => file.label = Some(label(string(&key, value)?)?),
                _ => {
                    const KEYS: &str = "store, username, password, password_file, ttl, wait, kill_after, label";
                    return Err(format!("unknown key {key}; it may have {KEYS}"));
                }
            }
        }
        Ok(file)
    }
}

fn not_toml(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    // The line itself is not shown: it may be the one with the password.
    format!("line {} is not TOML, {}; write key = \"value\"", before.matches('\n').count() + 1, error.message())
}

fn string(key: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::String(_) => Err(format!("{key} is empty; remove it or give it a value")),
        other => Err(format!("{key} is of type {}, not a string; put it in quotes", other.type_str())),
    }
}

/// A label that can be part of an owner.
fn label(label: String) -> Result<String, String> {
    Owner::generate(&label).map_err(|error| error.to_string())?;
    Ok(label)
}

fn span(key: &str, value: &Value) -> Result<Duration, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Integer(seconds) => seconds.to_string(),
        Value::Float(seconds) => seconds.to_string(),
        other => return Err(format!("{key} is of type {}, not a duration; write e.g. \"30s\"", other.type_str())),
    };
    parse_duration(&text).map_err(|why| format!("{key}: {why}"))
}

/// Whether a store URL carries a password, so that children must not get it.
pub(crate) fn has_password(url: &OsStr) -> bool {
    let url = url.to_string_lossy();
    let Some((_, rest)) = url.split_once("://") else { return false };
    let before_parameters = rest.split('?').next().unwrap_or_default();
    before_parameters.rsplit_once('@').is_some_and(|(login, _)| login.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read() {
        let file = File::parse("store = \"redis://h\"\nttl = \"1m\"\nwait = 2\nkill_after = 0.5\nlabel = \"web\"").unwrap();
        assert_eq!(file.store.as_deref(), Some("redis://h"));
        assert_eq!(file.ttl, Some(Duration::from_secs(60)));
        assert_eq!(file.wait, Some(Duration::from_secs(2)));
        assert_eq!(file.kill_after, Some(Duration::from_millis(500)));
        assert_eq!(file.label.as_deref(), Some("web"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let table = [
            ("stor = 1", "unknown key stor"),
            ("store = 1", "store is of type integer"),
            ("ttl = \"soon\"", "ttl: \"soon\""),
            ("ttl = -1", "ttl: \"-1\""),
            ("label = \"\"", "label is empty"),
            ("a = 1\nb = [", "line 2 is not TOML"),
        ];
        for (text, why) in table {
            let error = File::parse(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_broken_line_with_a_password_is_not_shown() {
        let error = File::parse("password = \"s3cret\nx").unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn passwords_in_urls_are_seen() {
        for url in ["redis://:pw@h", "rediss://u:pw@h:1/0?x=y", "redis+unix://:pw@/run/r.sock", "redis://u:p/w@h"] {
            assert!(has_password(OsStr::new(url)), "{url}");
        }
        for url in ["redis://h:6379", "redis://u@h", "sqlite:/tmp/a@b:c", "redis://h:1/0?ca=/x@y"] {
            assert!(!has_password(OsStr::new(url)), "{url}");
        }
    }
}
