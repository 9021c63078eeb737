//! How a connection begins: who is there, what it can do, and that nothing of its predecessors runs later.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ProtocolVersion, RedisError, RedisResult, Value, cmd, pipe};
use tenure::Error;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::failure::{translate, translate_answer};
use crate::link::{Link, Wire};
use crate::push::Pushes;
use crate::server::Server;

/// How a server names one of its connections, so that another can end it. The address guards against a server that has restarted
/// and given the number to somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    id: String,
    addr: String,
}

/// What the handshake found.
pub(crate) struct Met {
    pub(crate) link: Link,
    /// The predecessors can no longer send anything.
    pub(crate) predecessors_ended: bool,
}

impl Link {
    /// Connects, ends the predecessors, learns who is there, and hears pushes if any are wanted: in two round trips, three where the
    /// server does not speak RESP3.
    ///
    /// What a predecessor still had under way has run before this returns, or never will.
    pub(crate) async fn establish(
        client: &Client,
        limit: Duration,
        predecessors: &[Identity],
        pushes: &Arc<Pushes>,
    ) -> Result<Met, Error> {
        let (wire, resp3) = match open(client, limit, pushes).await {
            Ok(opened) => opened,
            Err(error) => return Err(not_let_in(client, limit, &error).await),
        };
        let subscribe = resp3 && pushes.are_wanted();
        let mut handshake = pipe();
        for Identity { id, addr } in predecessors {
            handshake.cmd("CLIENT").arg("KILL").arg("ID").arg(id).arg("ADDR").arg(addr);
        }
        for question in Server::questions() {
            handshake.add_command(question);
        }
        handshake.cmd("CLIENT").arg("INFO");
        if subscribe {
            handshake.add_command(pushes.subscribe());
        }
        // CLIENT may be forbidden; a command that every user of locks may send tells whether the server serves us at all.
        handshake.add_command(cmd("PING"));
        handshake.ignore_errors();
        let mut answers = match wire.send(&handshake).await {
            Ok(answers) => answers.into_iter(),
            Err(error) => return Err(not_let_in(client, limit, &error).await),
        };
        let mut answer = || answers.next().unwrap_or_else(|| Err((redis::ErrorKind::Parse, "too few replies").into()));
        // Each kill answers how many it ended: none is as good, the predecessor was gone.
        let killed: Vec<_> = predecessors.iter().map(|_| answer()).collect();
        let server = Server::from_answers([answer(), answer()]);
        let identity = answer().ok().and_then(|info| identity(&info));
        let hears = subscribe.then(|| answer().is_ok());
        answer().map_err(|e| refused_or_unreachable(client, &e))?;
        let link = Self::new(Box::new(wire), identity, server);
        if let Some(hears) = hears.or((!resp3).then_some(false)) {
            link.set_hears(hears);
        }
        Ok(Met { link, predecessors_ended: killed.iter().all(Result::is_ok) })
    }
}

/// A connection that speaks RESP3, which can be pushed to, or RESP2 where that is refused; and whether it is RESP3.
async fn open(client: &Client, limit: Duration, pushes: &Arc<Pushes>) -> RedisResult<(MultiplexedConnection, bool)> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(None);
    let heard = Arc::clone(pushes);
    let take_in = move |push| {
        heard.take_in(push);
        Ok::<_, std::convert::Infallible>(())
    };
    match client.get_multiplexed_async_connection_with_config(&config.clone().set_push_sender(take_in)).await {
        Err(error) if is_no_resp3(&error) => {
            let info = client.get_connection_info();
            let login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
            let client = Client::open(info.clone().set_redis_settings(login))?;
            Ok((client.get_multiplexed_async_connection_with_config(&config).await?, false))
        }
        opened => Ok((opened?, true)),
    }
}

/// Whether an answer to the greeting may mean that only the new protocol is refused: a server or a proxy that does not know
/// `HELLO`, or a user who may not send it.
fn is_no_resp3(error: &RedisError) -> bool {
    let password = error.kind() == redis::ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
    error.kind() == redis::ErrorKind::RESP3NotSupported || error.code().is_some() && !password
}

fn identity(info: &Value) -> Option<Identity> {
    let text: String = redis::from_redis_value(info.clone()).ok()?;
    let id = text.split_whitespace().find_map(|field| field.strip_prefix("id="))?;
    // The path of a unix socket may have spaces.
    let addr = text.split_once(" addr=")?.1.split_once(" laddr=")?.0;
    Some(Identity { id: id.to_owned(), addr: addr.to_owned() })
}

/// Nothing but the handshake was sent: whatever failed, no lock was touched.
fn refused_or_unreachable(client: &Client, error: &RedisError) -> Error {
    let translated = translate(error);
    if translated.is_transient() && error.code().is_none() {
        if error.to_string().contains("certificate") {
            let fix = "renew the server's certificate, or name the authority that signed it with ca=";
            return Error::unreachable(format!("no connection: {error}")).fix(fix);
        }
        // The two look alike from here: a server that waits for more of what it takes for a command, or hangs up on it.
        let tls = match client.get_connection_info().addr() {
            ConnectionAddr::TcpTls { .. } => " and speaks TLS on this port (redis:// is without)",
            ConnectionAddr::Tcp(..) => " and speaks no TLS on this port (rediss:// is with)",
            _ => "",
        };
        let fix = format!("make sure that the server runs, can be reached from here{tls}");
        return Error::unreachable(format!("no connection: {error}")).fix(fix);
    }
    translated
}

/// Why there is no connection, in the server's own words where it had some.
async fn not_let_in(client: &Client, limit: Duration, error: &RedisError) -> Error {
    let said = if error.is_connection_dropped() { parting_word(client, limit).await } else { None };
    said.unwrap_or_else(|| refused_or_unreachable(client, error))
}

/// Why a server hung up at once, e.g. because it has too many clients: it says so unasked, and the client library tells of its own
/// broken write instead.
async fn parting_word(client: &Client, limit: Duration) -> Option<Error> {
    const AT_ONCE: Duration = Duration::from_millis(100);
    let ConnectionAddr::Tcp(host, port) = client.get_connection_info().addr() else { return None };
    let said = async {
        let mut stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
        let mut said = [0; 256];
        let length = stream.read(&mut said).await.ok()?;
        Some(String::from_utf8_lossy(&said[..length]).trim_end().strip_prefix('-')?.to_owned())
    };
    let answer = tokio::time::timeout(limit.min(AT_ONCE), said).await.ok()??;
    Some(translate_answer(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_by_number_and_address() {
        for (addr, info) in [
            ("127.0.0.1:40202", "id=7 addr=127.0.0.1:40202 laddr=127.0.0.1:6379 fd=8 name= age=0"),
            ("/tmp/two words/r.sock:0", "id=7 addr=/tmp/two words/r.sock:0 laddr=/tmp/two words/r.sock:0 fd=8 name= age=0"),
        ] {
            let known = identity(&Value::BulkString(info.into())).unwrap();
            assert_eq!((&*known.id, &*known.addr), ("7", addr));
        }
        assert_eq!(identity(&Value::Nil), None);
    }
}
