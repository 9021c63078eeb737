//! A session of a database's own client.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};

use crate::process::Spawned;

/// Printed behind the rows of a statement.
const DONE: &str = "-- done --";

/// A session that stays open. It ends when this is dropped, as the session of a client that dies does.
#[derive(Debug)]
pub struct SqlSession {
    client: Spawned,
    /// The statement that prints [`DONE`].
    done: String,
}

impl SqlSession {
    /// `prints`: a statement that prints a text.
    pub(crate) fn start(client: &mut Command, prints: impl FnOnce(&str) -> String) -> Self {
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self { client: Spawned::spawn(client).expect("the database's client can be started"), done: prints(DONE) }
    }

    /// Runs statements, and waits until they are done.
    pub fn run(&mut self, statements: &str) -> Vec<String> {
        let input = self.client.child().stdin.as_mut().expect("piped");
        writeln!(input, "{statements}\n{}", self.done).expect("the client listens");
        input.flush().expect("the client listens");
        let output = self.client.child().stdout.as_mut().expect("piped");
        // A byte at a time: what is read ahead would be lost with the reader.
        let mut lines = BufReader::with_capacity(1, output.by_ref()).lines();
        let mut rows = Vec::new();
        loop {
            let line = lines.next().expect("the client answers").expect("the client answers in UTF-8");
            if line == DONE {
                return rows;
            }
            rows.push(line);
        }
    }
}
