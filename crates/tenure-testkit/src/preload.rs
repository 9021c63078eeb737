//! A library in front of the system's, in processes that are about to start.

use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};

use tempfile::TempDir;

/// A library that was made of C; keep it as long as the processes run. A statically linked program, and one that makes its own system
/// calls, does not see it.
#[derive(Debug)]
pub struct Preload(TempDir);

impl Preload {
    /// Compiles it. The compiler is `$CC`, else `cc`; a missing one panics.
    pub fn new(source: &str) -> Self {
        let dir = TempDir::with_prefix("tenure-preload-").expect("a temporary directory can be made");
        let named = std::env::var("CC").ok().filter(|name| !name.is_empty());
        compile(&dir, source, &named.unwrap_or_else(|| "cc".to_owned()));
        Self(dir)
    }

    /// Gives it to a process that is about to start, and to all it starts.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.library());
    }

    /// A place for a file beside it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Where it is.
    pub(crate) fn library(&self) -> PathBuf {
        library(&self.0)
    }
}

fn library(dir: &TempDir) -> PathBuf {
    dir.path().join("preload.so")
}

fn compile(dir: &TempDir, text: &str, compiler: &str) {
    let source = dir.path().join("preload.c");
    fs::write(&source, text).expect("a directory of ours can be written");
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O2", "-o"]).arg(library(dir)).arg(&source);
    let output = command.output().unwrap_or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => panic!("{compiler} not found: install a C compiler (apt-get install gcc) or set CC"),
        _ => panic!("{compiler} cannot be started: {error}"),
    });
    assert!(output.status.success(), "{compiler} cannot make the library:\n{}", String::from_utf8_lossy(&output.stderr));
}
