//! Where a lock file is, and for whom it is made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf, absolute};
use std::sync::mpsc;

use nix::unistd::Group;
use tenure::store::record::Listeners;
use tenure::{Error, Locker};
use tokio::sync::oneshot;

use super::SqliteStore;
use super::share::Sharing;
use super::thread::{Worker, ended};

const SCHEME: &[u8] = b"sqlite:";
const EXAMPLE: &str = "write e.g. sqlite:/var/lib/tenure/locks.db";

/// Settings of a lock file.
///
/// ```no_run
/// # fn main() -> Result<(), tenure::Error> {
/// use tenure_sql::sqlite::Options;
///
/// let store = Options::new("/var/lib/app/locks.db").mode(0o660).group(33).open()?;
/// let same = Options::parse("sqlite:/var/lib/app/locks.db?mode=0660&group=www-data")?.open()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    path: PathBuf,
    mode: Option<u32>,
    group: Option<u32>,
}

tenure::parameters! {
    for Options, read into Options:
    "mode" = "0660", "mode of a file that is made, and of its -wal and -shm: 0600 for one user, 0660 for a group, 0666 for all",
        "0600, with `group=` 0660" => |o, v| o.mode = Some(octal(v.text)?);
    "group" = "NAME", "group of a file that is made, by its name or number", "that of the process"
        => |o, v| o.group = Some(group_number(v.text)?);
    "scheme" = "native", "the only scheme of a file", "`native`" => |_o, v| v.one_of(&[("native", ())])?;
}

impl Options {
    /// The lock file at `path`, for this user alone if it has to be made.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), mode: None, group: None }
    }

    /// Reads a URL, `sqlite:PATH` with the parameters of [`PARAMETERS`](Self::PARAMETERS).
    ///
    /// The path is used as it stands, `%` and all, and need not be UTF-8.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) for a URL that names no file, another parameter, or a group that is not there.
    pub fn parse(url: impl AsRef<OsStr>) -> Result<Self, Error> {
        let bytes = url.as_ref().as_bytes();
        let rest = match bytes.split_at_checked(SCHEME.len()) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(SCHEME) => rest,
            // The text is not shown: whatever it is, it may hold a password.
            _ => return Err(Error::invalid("the URL of a lock file begins with sqlite:").with_hint(EXAMPLE)),
        };
        let rest = rest.strip_prefix(b"//").unwrap_or(rest);
        let mut parts = rest.splitn(2, |b| *b == b'?');
        let path = parts.next().unwrap_or_default();
        let parameters = String::from_utf8_lossy(parts.next().unwrap_or_default());
        let mut options = match path {
            b"" => return Err(Error::invalid("sqlite: names no file").with_hint(EXAMPLE)),
            b":memory:" => {
                return Err(
                    Error::invalid("sqlite::memory: would exclude nobody").with_hint("name a file that all processes share")
                );
            }
            path => Self::new(OsStr::from_bytes(path)),
        };
        // A file has no password that a message could show.
        Self::read_parameters(&mut options, &parameters.replace('@', "%40"))?;
        Ok(options)
    }

    /// Returns the path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Mode of a file that is made, and of the two files beside it: 0o600, 0o660 for a group or 0o666 for all.
    ///
    /// All who may use the file can end each other's locks, and can keep everybody out. A file that is there keeps its mode.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Group of a file that is made, by its number. Its mode is then 0o660 unless another is set.
    #[must_use]
    pub fn group(mut self, group: u32) -> Self {
        self.group = Some(group);
        self
    }

    /// Opens the file, and makes it and the directories above it where they are missing.
    ///
    /// Blocks for some hundred microseconds, and up to 5 s where many processes make the file at once; [`connect`](Self::connect) does not block.
    ///
    /// # Errors
    /// [`Damaged`](tenure::ErrorKind::Damaged) when the file cannot be used: corrupt, read-only, on a full disk, not a file, of another
    /// application, of a newer version, or used from another machine. [`Invalid`](tenure::ErrorKind::Invalid) for another mode.
    pub fn open(self) -> Result<SqliteStore, Error> {
        let (opened, answer) = mpsc::sync_channel(1);
        let (path, listeners) = self.start(move |worker| drop(opened.send(worker)))?;
        Ok(SqliteStore::new(path, listeners, answer.recv().map_err(|_| ended())??))
    }

    /// A [`Locker`] on the file.
    ///
    /// # Errors
    /// As [`open`](Options::open).
    ///
    /// # Cancel safety
    /// A dropped future may leave an empty lock file behind.
    pub async fn connect(self) -> Result<Locker, Error> {
        let (opened, answer) = oneshot::channel();
        let (path, listeners) = self.start(move |worker| drop(opened.send(worker)))?;
        Ok(Locker::new(SqliteStore::new(path, listeners, answer.await.map_err(|_| ended())??)))
    }

    fn start(self, opened: impl FnOnce(Result<Worker, Error>) + Send + 'static) -> Result<(PathBuf, Listeners), Error> {
        let (path, sharing) = (checked(&self.path)?, Sharing::new(self.mode, self.group)?);
        let listeners = Listeners::default();
        Worker::start(path.clone(), sharing, listeners.clone(), opened)?;
        Ok((path, listeners))
    }
}

/// Opens the lock file at `path`, for this user alone if it has to be made: [`Options::open`].
///
/// # Errors
/// As [`Options::open`].
pub fn open(path: impl AsRef<Path>) -> Result<SqliteStore, Error> {
    Options::new(path.as_ref()).open()
}

/// A [`Locker`] on the lock file at `path`: [`Options::connect`].
///
/// # Errors
/// As [`Options::open`].
///
/// # Cancel safety
/// A dropped future may leave an empty lock file behind.
pub async fn connect(path: impl AsRef<Path> + Send) -> Result<Locker, Error> {
    let options = Options::new(path.as_ref());
    options.connect().await
}

/// The absolute path: it means the same file after a change of directory, and is none of SQLite's
/// special names.
fn checked(path: &Path) -> Result<PathBuf, Error> {
    absolute(path).map_err(|e| Error::invalid(format!("{:?} is no path for a lock file", path.display())).with_source(e))
}

fn octal(mode: &str) -> Result<u32, Error> {
    u32::from_str_radix(mode, 8)
        .map_err(|_| Error::invalid(format!("mode={mode} is no mode of a file")).with_hint("write e.g. mode=0660"))
}

/// The number of a group that is given by that or by its name.
fn group_number(group: &str) -> Result<u32, Error> {
    let named = || Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw());
    group.parse().ok().or_else(named).ok_or_else(|| {
        let what = format!("group={group} of the store is no group of this machine");
        Error::invalid(what).with_hint("see `getent group`, or make it with groupadd")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read() {
        for url in ["sqlite:/a/b.db", "sqlite:///a/b.db", "sqlite:/a/b.db?scheme=native", "SQLITE:/a/b.db"] {
            assert_eq!(Options::parse(url).unwrap(), Options::new("/a/b.db"), "{url}");
        }
        assert_eq!(Options::parse("sqlite:b.db").unwrap().path(), Path::new("b.db"));
        assert_eq!(Options::parse("sqlite:/b.db?mode=0660&group=7").unwrap(), Options::new("/b.db").mode(0o660).group(7));
        let odd = OsStr::from_bytes(b"sqlite:/a%20\xff");
        assert_eq!(Options::parse(odd).unwrap().path().as_os_str().as_bytes(), b"/a%20\xff");
    }

    #[test]
    fn bad_urls_are_refused_with_what_to_write() {
        let table = [
            ("sqlite", "begins with sqlite:"),
            ("/tmp/x.db", "begins with sqlite:"),
            ("sqlite:", "names no file"),
            ("sqlite::memory:", "exclude nobody"),
            ("sqlite:x?cache=shared", "cache= is no parameter"),
            ("sqlite:x?mode=rw", "mode=rw is no mode"),
            ("sqlite:x?scheme=getset", "write scheme=native"),
            ("sqlite:x?group=no-such-group", "group=no-such-group of the store is no group"),
        ];
        for (url, why) in table {
            let text = Options::parse(url).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
    }
}
