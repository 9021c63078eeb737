//! What a server can do, as far as it was told in the handshake.

use redis::{Cmd, RedisResult, Value, cmd};

/// What the far end of a connection has. Nothing, where a server or a proxy does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(dead_code, reason = "for those who choose the form of a command by it, and shown")]
pub(crate) struct Server {
    /// As it calls itself, e.g. `7.0.15`.
    pub(crate) version: Option<String>,
    /// `DELEX` and `SET IFEQ`, which came together.
    pub(crate) compare_and_delete: bool,
    pub(crate) functions: bool,
}

impl Server {
    /// The commands that ask, and their number.
    pub(crate) fn questions() -> [Cmd; 2] {
        let mut commands = cmd("COMMAND");
        commands.arg("INFO").arg("DELEX").arg("FCALL");
        [cmd("HELLO"), commands]
    }

    pub(crate) fn from_answers([hello, commands]: [RedisResult<Value>; 2]) -> Self {
        let version = hello.ok().and_then(|hello| version(&hello));
        let known = match commands {
            Ok(Value::Array(commands)) => commands,
            _ => Vec::new(),
        };
        let has = |index| matches!(known.get(index), Some(Value::Array(about)) if !about.is_empty());
        Self { version, compare_and_delete: has(0), functions: has(1) }
    }
}

/// The field `version` of a map, which is a flat array to those who do not speak RESP3.
fn version(hello: &Value) -> Option<String> {
    let pairs: Vec<(String, Value)> = redis::from_redis_value(hello.clone()).ok()?;
    let (_, version) = pairs.into_iter().find(|(field, _)| field == "version")?;
    redis::from_redis_value(version).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn reads_what_is_told() {
        let pairs = vec![(text("server"), text("redis")), (text("version"), text("8.4.0")), (text("id"), Value::Int(7))];
        let flat = pairs.iter().flat_map(|(field, value)| [field.clone(), value.clone()]).collect();
        let known = |name: &str| Value::Array(vec![text(name), Value::Int(-2)]);
        for hello in [Value::Map(pairs), Value::Array(flat)] {
            let answers = [Ok(hello), Ok(Value::Array(vec![known("delex"), Value::Nil]))];
            let expected = Server { version: Some("8.4.0".to_owned()), compare_and_delete: true, functions: false };
            assert_eq!(Server::from_answers(answers), expected);
        }
        let refused = || redis::RedisError::from((redis::ErrorKind::Client, "refused"));
        assert_eq!(Server::from_answers([Err(refused()), Err(refused())]), Server::default());
    }
}
