//! The start of a connection: log in, and end its predecessors, so that none of their commands runs
//! later.

use std::sync::Arc;
use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, Pipeline, ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult,
    Value, cmd, pipe,
};
use tenure::Error;
use tenure::store::Login;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::transport::contact::Contact;
use crate::transport::dial::{Dialed, Peer, dial};
use crate::transport::failure::{is_unknown, no_server, translate, translate_answer};
use crate::transport::link::{Identity, Link, Wire};
use crate::transport::multiplex::Multiplexed;
use crate::transport::push::{Pushes, Source};

/// A connection that may be used.
pub(crate) struct Established {
    pub(crate) link: Link,
    /// The predecessors at this server.
    pub(crate) here: Vec<Identity>,
    /// None of them can send anything more.
    pub(crate) predecessors_ended: bool,
    /// The server has said that it is a replica.
    pub(crate) is_replica: bool,
}

/// Connects, logs in, ends the predecessors at this server, and subscribes if anybody listens. It takes one round
/// trip, two more with TLS, and one more if the server does not speak RESP3.
///
/// Commands of such a predecessor have run before this returns, or never will. A login that is refused is asked for
/// once more.
pub(crate) async fn establish(
    peer: &Peer,
    limit: Duration,
    predecessors: &[Identity],
    pushes: &Arc<Pushes>,
    asks_role: bool,
) -> Result<Established, Error> {
    let attempt = |login: Login| async move {
        let client = peer.with_login(&login).map_err(|error| translate(&error))?;
        establish_as(&client, limit, predecessors, pushes, asks_role).await
    };
    let told = |error| if is_unknown(&error) && peer.senseless.is_for_now() { no_server(&error) } else { error };
    let established = peer.credentials.log_in(attempt).await.map_err(told)?;
    Ok(Established { link: established.link.judged_by(&peer.senseless), ..established })
}

async fn establish_as(
    client: &Client,
    limit: Duration,
    predecessors: &[Identity],
    pushes: &Arc<Pushes>,
    asks_role: bool,
) -> Result<Established, Error> {
    let established = match greet(client, ProtocolVersion::RESP3, limit, predecessors, pushes, asks_role).await {
        Err(error) if is_no_resp3(&error) => greet(client, ProtocolVersion::RESP2, limit, predecessors, pushes, asks_role).await,
        established => established,
    };
    match established {
        Ok(established) => Ok(established),
        Err(error) => Err(not_let_in(client, limit, &error).await),
    }
}

async fn greet(
    client: &Client,
    protocol: ProtocolVersion,
    limit: Duration,
    predecessors: &[Identity],
    pushes: &Arc<Pushes>,
    asks_role: bool,
) -> RedisResult<Established> {
    let resp3 = protocol.supports_resp3();
    let subscriptions = if resp3 { pushes.subscriptions() } else { Vec::new() };
    let (wire, server, local) = open(client, protocol, limit, pushes).await?;
    let here: Vec<Identity> = predecessors.iter().filter(|identity| identity.server == server).cloned().collect();
    let mut handshake = pipe();
    if matches!(wire, Wire::Ours(_)) {
        log_in(&mut handshake, client.get_connection_info().redis_settings(), resp3);
    }
    let greetings = handshake.len();
    for Identity { id, addr, .. } in &here {
        handshake.cmd("CLIENT").arg("KILL").arg("ID").arg(id).arg("ADDR").arg(addr);
    }
    handshake.cmd("CLIENT").arg("INFO");
    for (subscribe, _) in &subscriptions {
        handshake.add_command(subscribe.clone());
    }
    if asks_role {
        handshake.add_command(cmd("ROLE"));
    }
    // The user may not be allowed CLIENT. Every user of locks may PING.
    handshake.add_command(cmd("PING"));
    let answers = timeout(limit, wire.send(&handshake.into())).await;
    let mut answers = answers.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??.into_iter();
    let mut answer = || answers.next().unwrap_or_else(|| Err((redis::ErrorKind::Parse, "too few replies").into()));
    for _ in 0..greetings {
        answer()?;
    }
    // Each kill returns how many it ended. None is as good: the predecessor was gone.
    let killed: Vec<_> = here.iter().map(|_| answer()).collect();
    let identity = answer().ok().and_then(|info| identity(&info, server));
    let (mut own, mut tracks, mut any_other) = (None, None, false);
    for (_, source) in &subscriptions {
        let subscribed = answer().is_ok();
        match source {
            Source::Own => own = Some(subscribed),
            Source::Keys => tracks = Some(subscribed),
            // A user may listen to some of the others alone.
            Source::Other(channel) => {
                pushes.set_heard(channel, subscribed);
                any_other |= subscribed;
            }
        }
    }
    let hears = own.or(any_other.then_some(true));
    // One who may not ask finds out by its first write.
    let is_replica = asks_role && matches!(answer(), Ok(Value::Array(role)) if !is_master(&role));
    answer()?;
    let is_direct = local.is_some() && identity.as_ref().map(|identity| &identity.addr) == local.as_ref();
    let mut link = Link::new(wire, identity);
    link.is_direct = is_direct;
    if let Some(hears) = hears.or((!resp3).then_some(false)) {
        link.set_hears(hears);
    }
    if let Some(tracks) = tracks.or((!resp3).then_some(false)) {
        link.set_tracks(tracks);
    }
    Ok(Established { link, here, predecessors_ended: killed.iter().all(Result::is_ok), is_replica })
}

/// Connects, without a login if the stream is ours. Returns where the server is, too, and our end of the stream where it is known.
pub(super) async fn open(
    client: &Client,
    protocol: ProtocolVersion,
    limit: Duration,
    pushes: &Arc<Pushes>,
) -> RedisResult<(Wire, String, Option<String>)> {
    if let Some(Dialed { stream, server, local }) = dial(client).await? {
        return Ok((Wire::Ours(Multiplexed::start(stream, Arc::clone(pushes))), server, Some(local)));
    }
    let contact = Arc::new(Contact::default());
    let mut config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(None);
    if protocol.supports_resp3() {
        let (pushes, contact) = (Arc::clone(pushes), Arc::clone(&contact));
        config = config.set_push_sender(move |push| {
            if pushes.ends_link(&push) {
                contact.end();
            }
            pushes.take_in(push);
            Ok::<_, std::convert::Infallible>(())
        });
    }
    let info = client.get_connection_info();
    let login = info.redis_settings().clone().set_protocol(protocol);
    let client = Client::open(info.clone().set_redis_settings(login))?;
    let wire = Wire::Theirs(Box::new(client.get_multiplexed_async_connection_with_config(&config).await?), contact);
    Ok((wire, info.addr().to_string(), None))
}

pub(super) fn log_in(handshake: &mut Pipeline, login: &RedisConnectionInfo, resp3: bool) {
    if resp3 {
        handshake.cmd("HELLO").arg(3);
        if let Some(password) = login.password() {
            handshake.arg("AUTH").arg(login.username().unwrap_or("default")).arg(password);
        }
    } else if let Some(password) = login.password() {
        handshake.cmd("AUTH").arg(login.username()).arg(password);
    }
    if login.db() != 0 {
        handshake.cmd("SELECT").arg(login.db());
    }
}

/// Whether an error of the greeting may mean that only RESP3 is refused: by a server or a proxy
/// that does not know `HELLO`, or because the user may not send it. One that loads its data, or is busy, refuses all.
fn is_no_resp3(error: &RedisError) -> bool {
    if translate(error).is_transient() {
        return false;
    }
    let password = error.kind() == redis::ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
    error.kind() == redis::ErrorKind::RESP3NotSupported || error.code().is_some() && !password
}

/// Whether an answer to `ROLE` is that of a master.
fn is_master(role: &[Value]) -> bool {
    matches!(role.first(), Some(Value::BulkString(name)) if name == b"master")
}

fn identity(info: &Value, server: String) -> Option<Identity> {
    let text: String = redis::from_redis_value(info.clone()).ok()?;
    let id = text.split_whitespace().find_map(|field| field.strip_prefix("id="))?;
    // The path of a unix socket may have spaces.
    let addr = text.split_once(" addr=")?.1.split_once(" laddr=")?.0;
    Some(Identity { id: id.to_owned(), addr: addr.to_owned(), server })
}

/// The error of a server that did not answer in time. No lock was touched.
pub(crate) fn unanswered(peer: &Peer) -> Error {
    let silent =
        || refused_or_unreachable(&peer.client, &std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time").into());
    peer.credentials.unanswered().unwrap_or_else(silent)
}

/// The error of a failed handshake. No lock was touched.
fn refused_or_unreachable(client: &Client, error: &RedisError) -> Error {
    let translated = translate(error);
    if translated.is_transient() && error.code().is_none() {
        if error.to_string().contains("certificate") {
            let fix = certificate_fix(&error.to_string());
            return Error::unreachable(format!("no connection: {error}")).with_hint(fix);
        }
        // Two causes look alike here: a server that takes TLS for a command and waits for more, or
        // hangs up.
        let tls = match client.get_connection_info().addr() {
            ConnectionAddr::TcpTls { .. } => " and speaks TLS on this port (redis:// is without)",
            ConnectionAddr::Tcp(..) => " and speaks no TLS on this port (rediss:// is with)",
            _ => "",
        };
        let fix = format!("make sure that the server runs, can be reached from here{tls}");
        return Error::unreachable(format!("no connection: {error}")).with_hint(fix);
    }
    translated
}

/// How to fix a certificate that is refused.
fn certificate_fix(error: &str) -> &'static str {
    if error.contains("CaUsedAsEndEntity") {
        return "the server shows a CA certificate as its own, e.g. the one that ca= names: give the server a certificate that this CA \
                signs, or make the self-signed one again as a server's (openssl req -x509 -addext basicConstraints=CA:FALSE)";
    }
    if error.contains("NotValidForName") {
        return "write the host as the certificate has it in subjectAltName, or make a certificate with that name";
    }
    if error.contains("Expired") || error.contains("NotValidYet") {
        return "renew the server's certificate, and look at the clocks of both machines";
    }
    "name the authority that signed the server's certificate with ca=, or renew the certificate"
}

/// Why there is no connection, in the server's own words if it sent any.
async fn not_let_in(client: &Client, limit: Duration, error: &RedisError) -> Error {
    let said = if error.is_connection_dropped() { parting_word(client, limit).await } else { None };
    said.unwrap_or_else(|| refused_or_unreachable(client, error))
}

/// Reads why a server hung up at once, e.g. because it has too many clients. It sends that unasked,
/// and the client library reports its own broken write instead.
async fn parting_word(client: &Client, limit: Duration) -> Option<Error> {
    const AT_ONCE: Duration = Duration::from_millis(100);
    let ConnectionAddr::Tcp(host, port) = client.get_connection_info().addr() else { return None };
    let said = async {
        let mut stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
        let mut said = [0; 256];
        let length = stream.read(&mut said).await.ok()?;
        Some(String::from_utf8_lossy(&said[..length]).trim_end().strip_prefix('-')?.to_owned())
    };
    let answer = timeout(limit.min(AT_ONCE), said).await.ok()??;
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
            let known = identity(&Value::BulkString(info.into()), String::new()).unwrap();
            assert_eq!((&*known.id, &*known.addr), ("7", addr));
        }
        assert_eq!(identity(&Value::Nil, String::new()), None);
    }
}
