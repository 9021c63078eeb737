//! The protocol between the processes of a test: each thing that is said is a line of JSON.
//!
//! A [`Process`] is spoken to over its standard input and output, a [`Service`] over a unix socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::Spawned;

/// Writes one line at once: the next thing that happens may be a kill.
///
/// # Errors
/// When nobody reads any more.
pub fn say(mut to: impl Write, said: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(said)? + "\n";
    to.write_all(line.as_bytes())?;
    to.flush()
}

/// Reads one line; `None` at the end. Skips what a test harness prints: a head before its test, and a line when the test takes a
/// minute.
///
/// # Errors
/// For a line that is not what was expected.
pub fn hear<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    while from.read_line(&mut line)? > 0 {
        if !line.trim().is_empty() && !line.starts_with("running ") && !is_of_a_long_test(&line) {
            let strange = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{line:?} was said: {error}"));
            return serde_json::from_str(&line).map(Some).map_err(strange);
        }
        line.clear();
    }
    Ok(None)
}

fn is_of_a_long_test(line: &str) -> bool {
    line.starts_with("test ") && line.contains(" has been running for over ")
}

/// A child that is spoken to. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Spawned,
    to: ChildStdin,
    from: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts `command`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let mut child = Spawned::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, to, from: Some(BufReader::new(from)) })
    }

    /// Says something to it.
    ///
    /// # Errors
    /// When it reads no more.
    pub fn tell(&mut self, said: &impl Serialize) -> io::Result<()> {
        say(&mut self.to, said)
    }

    /// Waits for what it says next.
    ///
    /// # Errors
    /// When that is its end, or not what was expected.
    pub fn hear<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let said = self.from.as_mut().map(hear).transpose()?.flatten();
        said.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the process has ended"))
    }

    /// Hands what it says from now on to `each`, in a thread that goes on until its end or until `each` has had enough.
    pub fn listen<T: DeserializeOwned>(
        &mut self,
        mut each: impl FnMut(io::Result<Option<T>>) -> bool + Send + 'static,
    ) -> JoinHandle<()> {
        let mut from = self.from.take().expect("nobody else listens");
        std::thread::spawn(move || while each(hear(&mut from)) {})
    }

    /// The process itself.
    pub fn child(&mut self) -> &mut Spawned {
        &mut self.child
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// Something in this process that others visit over a unix socket; it outlives its visitors. Ends when dropped.
#[derive(Debug)]
pub struct Service {
    listener: Arc<UnixListener>,
    path: PathBuf,
    _dir: TempDir,
}

impl Service {
    /// Opens for visitors, which are numbered as they come. `answer` gives the reply to each. `gone` is called
    /// with one that has left, or was killed.
    ///
    /// # Errors
    /// When no socket can be made.
    pub fn open<A: DeserializeOwned, T: Serialize>(
        answer: impl Fn(u64, A) -> T + Send + Sync + 'static,
        gone: impl Fn(u64) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let dir = TempDir::with_prefix("tenure-service-")?;
        let path = dir.path().join("service.sock");
        let listener = Arc::new(UnixListener::bind(&path)?);
        let (theirs, serves) = (Arc::clone(&listener), Arc::new((answer, gone)));
        std::thread::spawn(move || {
            for (visitor, stream) in (1..).zip(theirs.incoming().map_while(Result::ok)) {
                let serves = Arc::clone(&serves);
                std::thread::spawn(move || {
                    let (mut from, (answer, gone)) = (BufReader::new(&stream), &*serves);
                    while let Ok(Some(asked)) = hear(&mut from) {
                        if say(&stream, &answer(visitor, asked)).is_err() {
                            break;
                        }
                    }
                    gone(visitor);
                });
            }
        });
        Ok(Self { listener, path, _dir: dir })
    }

    /// Where it is reached.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}
