//! A session of a database's own shell that stays open, for statements that are to keep rows locked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};

use crate::process::Spawned;

/// A session at a database. It ends when this is dropped, as the session of a client that dies does.
#[derive(Debug)]
pub struct SqlSession {
    shell: Spawned,
    /// Prints [`DONE`], whatever the state of the transaction.
    say_done: &'static str,
}

const DONE: &str = "-- done --";

impl SqlSession {
    pub(crate) fn of_psql(psql: Command) -> Self {
        Self::start(psql, "\\echo '-- done --'")
    }

    pub(crate) fn of_mariadb(mariadb: Command) -> Self {
        Self::start(mariadb, "SELECT '-- done --';")
    }

    fn start(mut shell: Command, say_done: &'static str) -> Self {
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self { shell: Spawned::spawn(&mut shell).expect("the database's shell can be started"), say_done }
    }

    /// Runs statements, and waits until they are done.
    #[track_caller]
    pub fn run(&mut self, statements: &str) -> Vec<String> {
        self.begin(statements);
        self.done().expect("the session goes on")
    }

    /// Runs statements, unless the session has ended.
    pub fn try_run(&mut self, statements: &str) -> Option<Vec<String>> {
        self.send(statements)?;
        self.done()
    }

    /// Begins to run statements. [`done`](Self::done) waits for them.
    #[track_caller]
    pub fn begin(&mut self, statements: &str) {
        self.send(statements).expect("the session goes on");
    }

    fn send(&mut self, statements: &str) -> Option<()> {
        let input = self.shell.child().stdin.as_mut()?;
        writeln!(input, "{statements}\n{}", self.say_done).and_then(|()| input.flush()).ok()
    }

    /// Waits for what was begun. Returns its rows, or nothing if the session has ended.
    pub fn done(&mut self) -> Option<Vec<String>> {
        let output = self.shell.child().stdout.as_mut()?;
        // A byte at a time: what is read ahead would be lost with the reader.
        let mut lines = BufReader::with_capacity(1, output.by_ref()).lines();
        let mut rows = Vec::new();
        loop {
            let line = lines.next()?.ok()?;
            if line == DONE {
                return Some(rows);
            }
            rows.push(line);
        }
    }
}
