//! Counts the commands that clients send, as the server reports them.

use std::thread::JoinHandle;

use redis::{Connection, RedisResult, Value, cmd};
use tenure::{Error, Owner};

/// Counts the commands that clients send to a server, from `begin` to `finish`.
///
/// `INFO commandstats` cannot: it counts what scripts call as well. `MONITOR` marks those, and shows a transaction's commands one by one.
pub(super) struct Monitor {
    speaker: Connection,
    marker: String,
    counting: JoinHandle<RedisResult<u64>>,
}

impl Monitor {
    /// Has the server tell `listener` of every command from now on, its end by `speaker`.
    pub(super) fn begin(listener: Connection, speaker: Connection) -> Result<Self, Error> {
        let mut listener = listen(listener)?;
        let marker = Owner::generate("marker")?.to_string();
        let end = marker.clone();
        let count = move || {
            let mut commands = 0;
            loop {
                let line = line(&listener.recv_response()?);
                if line.contains(&end) {
                    return Ok(commands);
                }
                commands += u64::from(is_sent(&line));
            }
        };
        let counting = std::thread::Builder::new().name("bench-monitor".into()).spawn(count);
        let counting = counting.map_err(|error| Error::unavailable("no thread to count commands in").with_source(error))?;
        Ok(Self { speaker, marker, counting })
    }

    /// How many commands were sent.
    pub(super) fn finish(mut self) -> Result<u64, Error> {
        let unanswered =
            |error: redis::RedisError| Error::unreachable("the server ended its account of commands").with_source(error);
        cmd("ECHO").arg(&self.marker).exec(&mut self.speaker).map_err(unanswered)?;
        let counted = self.counting.join().map_err(|_| Error::unavailable("the account of commands cannot be read"))?;
        counted.map_err(unanswered)
    }
}

/// Turns a connection into one to which the server reports every command.
pub(super) fn listen(mut connection: Connection) -> Result<Connection, Error> {
    let refused = |error| Error::refused("the server does not let us watch what it executes").with_source(error);
    cmd("MONITOR").exec(&mut connection).map_err(refused)?;
    Ok(connection)
}

fn line(told: &Value) -> String {
    match told {
        Value::SimpleString(line) => line.clone(),
        Value::BulkString(line) => String::from_utf8_lossy(line).into_owned(),
        _ => String::new(),
    }
}

/// Whether a line of the account, `1700000000.000001 [0 127.0.0.1:5000] "get" "name"`, is of a client's command and not a script's.
fn is_sent(line: &str) -> bool {
    let by = line.split_once(" [").and_then(|(_, rest)| rest.split_once("] \""));
    by.is_some_and(|(by, _)| !by.ends_with(" lua"))
}

#[cfg(test)]
mod tests {
    use tenure_testkit::RedisServer;

    use super::*;

    #[test]
    fn what_scripts_call_is_not_sent() {
        assert!(is_sent("1.0 [0 127.0.0.1:5000] \"set\" \"x\" \"] \\\"\""));
        assert!(is_sent("1.0 [3 unix:/tmp/two words/r.sock] \"get\" \"lua]\""));
        assert!(!is_sent("1.0 [0 lua] \"get\" \"x\""));
        assert!(!is_sent("OK"));
    }

    #[test]
    fn a_transaction_is_its_commands_and_a_script_is_one() {
        let server = RedisServer::start();
        let connect = || redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let mut client = connect();
        let monitor = Monitor::begin(connect(), connect()).unwrap();
        redis::pipe().atomic().cmd("SET").arg("x").arg(1).cmd("INCR").arg("x").exec(&mut client).unwrap();
        cmd("EVAL")
            .arg("return redis.call('GET', KEYS[1]) + redis.call('INCR', KEYS[1])")
            .arg(1)
            .arg("x")
            .exec(&mut client)
            .unwrap();
        assert_eq!(monitor.finish().unwrap(), 5, "MULTI, SET, INCR, EXEC and EVAL");
    }
}
