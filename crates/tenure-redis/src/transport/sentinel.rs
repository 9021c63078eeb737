//! Which server of a Sentinel group is the master now.
//!
//! Every new link asks all sentinels at the same moment. The largest configuration epoch counts: a
//! sentinel that was cut off names an old master, by an older epoch. While a link is in use, one
//! sentinel is listened to, so that the link is given up as soon as it reports another master.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ConnectionAddr, ProtocolVersion, RedisError, RedisResult, Value, cmd, pipe};
use tenure::store::{Login, too_few};
use tenure::{Error, ErrorKind, Owner};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use crate::transport::contact::Contact;
use crate::transport::dial::Peer;
use crate::transport::failure::translate;
use crate::transport::handshake::{log_in, open};
use crate::transport::link::Wire;
use crate::transport::push::{Pushed, Pushes};

/// Time for the other sentinels after the first has named a master.
const GRACE: Duration = Duration::from_millis(50);

/// Time between two tries to find a master that serves.
pub(crate) const PACE: Duration = Duration::from_millis(50);

/// Timeout of one try, so that a server which is stopped does not use up the time for the next.
pub(crate) const ONE_TRY: Duration = Duration::from_secs(1);

/// Time between two signs of life of the sentinel that is listened to, and for each of them.
const LISTEN: Duration = Duration::from_secs(5);
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// The channel on which a sentinel reports that a service has another master.
const SWITCHED: &str = "+switch-master";

/// The sentinels of a service, and how to reach the server that they name.
pub(crate) struct Sentinels {
    /// Name of the service at the sentinels.
    service: String,
    /// Each with its name in messages.
    asked: Vec<(String, Peer)>,
    /// The service's servers, at any address.
    servers: Peer,
}

/// The master of a service.
#[derive(Clone)]
pub(crate) struct Master {
    pub(crate) peer: Peer,
    host: String,
    port: u16,
    epoch: u64,
    /// Index of the sentinel that named it.
    named_by: usize,
}

impl Master {
    /// Whether another server that is named with this epoch took its place.
    fn is_followed_by(&self, epoch: u64, host: &str, port: u16) -> bool {
        epoch > self.epoch && (host, port) != (&*self.host, self.port)
    }
}

/// The answer of one sentinel: epoch, host and port.
type Named = (u64, String, u16);

impl Sentinels {
    pub(crate) const fn new(service: String, asked: Vec<(String, Peer)>, servers: Peer) -> Self {
        Self { service, asked, servers }
    }

    /// Asks all sentinels at the same moment for the master. The answer is that with the largest
    /// epoch when a majority has answered, or a moment after the first.
    ///
    /// # Errors
    /// [`Refused`](ErrorKind::Refused) if none of the sentinels knows the service, takes the login,
    /// or is one; [`Unreachable`](ErrorKind::Unreachable) if any of them does not answer before `end`.
    pub(crate) async fn master(&self, end: Instant) -> Result<Master, Error> {
        let ask = |(at, (shown, peer)): (usize, &(String, Peer))| {
            let (shown, peer) = (shown.clone(), peer.clone());
            async move { (at, self.ask(&shown, &peer, end).await) }
        };
        let mut asking: FuturesUnordered<_> = self.asked.iter().enumerate().map(ask).collect();
        let (mut best, mut answered, mut failures, mut until): (Option<(Named, usize)>, _, _, _) = (None, 0, Vec::new(), end);
        while let Ok(Some((at, answer))) = timeout_at(until, asking.next()).await {
            match answer {
                Ok(named) => {
                    answered += 1;
                    match named {
                        Some(named) => {
                            until = until.min(Instant::now() + GRACE);
                            if best.as_ref().is_none_or(|(other, _)| other.0 < named.0) {
                                best = Some((named, at));
                            }
                        }
                        None => failures.push(self.unknown_to(&self.asked[at].0)),
                    }
                    if best.is_some() && answered > self.asked.len() / 2 {
                        break;
                    }
                }
                Err(error) => failures.push(error),
            }
        }
        let silent = asking.len();
        drop(asking);
        let Some(((epoch, host, port), named_by)) = best else {
            let what = format!("no sentinel names the master of {:?}", self.service);
            return Err(too_few(what, self.asked.len() - 1, silent, failures));
        };
        let address = match self.servers.info().addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host: host.clone(), port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host.clone(), port),
        };
        let peer = self.servers.at(address).map_err(|e| translate(&e))?;
        Ok(Master { peer, host, port, epoch, named_by })
    }

    /// The answer of a sentinel that does not know the service. Another one may.
    fn unknown_to(&self, shown: &str) -> Error {
        Error::refused(format!("the sentinel {shown} knows no service {:?}", self.service))
            .with_hint("write the name that `sentinel monitor` gives it, as in redis+sentinel://host,host,host/mymaster")
    }

    /// Asks one sentinel. None if it does not know the service.
    async fn ask(&self, shown: &str, peer: &Peer, end: Instant) -> Result<Option<Named>, Error> {
        let limit = end.saturating_duration_since(Instant::now());
        let deaf = Pushes::deaf();
        let asking = peer.credentials.log_in(|login| {
            let deaf = &deaf;
            async move {
                let answer = self.converse(peer, &login, ProtocolVersion::RESP2, limit, deaf).await;
                answer.map(|(_, named)| named).map_err(|error| not_asked(shown, &error))
            }
        });
        let silent = || Error::unreachable(format!("{shown} did not answer in time"));
        let answer = timeout_at(end, asking).await;
        answer.unwrap_or_else(|_| Err(peer.credentials.unanswered().unwrap_or_else(silent)))
    }

    /// Logs in to a sentinel, subscribes if the protocol has pushes, and asks for the master.
    async fn converse(
        &self,
        peer: &Peer,
        login: &Login,
        protocol: ProtocolVersion,
        limit: Duration,
        pushes: &Arc<Pushes>,
    ) -> RedisResult<(Wire, Option<Named>)> {
        let listens = protocol.supports_resp3();
        let client = peer.with_login(login)?;
        let (wire, ..) = open(&client, protocol, limit, pushes).await?;
        let mut words = pipe();
        if matches!(wire, Wire::Ours(_)) {
            log_in(&mut words, client.get_connection_info().redis_settings(), listens);
        }
        if listens {
            words.add_command(pushes.subscribe());
        }
        let before = words.len();
        words.cmd("SENTINEL").arg("MASTER").arg(&self.service);
        words.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let mut answers = wire.send(&words.into()).await?.into_iter();
        for _ in 0..before {
            answers.next().unwrap_or(Ok(Value::Nil))?;
        }
        let about = answers.next().unwrap_or(Ok(Value::Nil));
        // This one names a promoted server before the epoch of the group is settled everywhere.
        let address: Option<(String, u16)> = redis::from_redis_value(answers.next().unwrap_or(Ok(Value::Nil))?)?;
        let Some((host, port)) = address else { return Ok((wire, None)) };
        let about: HashMap<String, String> = redis::from_redis_value(about?)?;
        let epoch = about.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
        Ok((wire, Some((epoch, host, port))))
    }

    /// Adds to the error of a master that cannot be used which it is, and who named it.
    pub(crate) fn about(&self, master: &Master, error: Error) -> Error {
        let (sentinel, service) = (&self.asked[master.named_by].0, &self.service);
        error.context(format_args!("the master of {service:?} at {}:{}, which {sentinel} names", master.host, master.port))
    }

    /// Ends the use of the link to `master`, and has each listener poll, as soon as a sentinel
    /// reports another master. If the sentinel goes away, the next one is listened to. From time to
    /// time the others are asked as well.
    pub(crate) async fn follow(self: Arc<Self>, master: Master, contact: Arc<Contact>, pushes: Arc<Pushes>) {
        for at in master.named_by.. {
            let (shown, peer) = &self.asked[at % self.asked.len()];
            match self.hears_of_another(peer, &master).await {
                Ok(()) => break,
                Err(error) => debug!(%error, sentinel = shown, "no sentinel is listened to"),
            }
            tokio::time::sleep(SIGN_OF_LIFE).await;
        }
        debug!(service = self.service, "another master");
        contact.end();
        pushes.missed();
    }

    /// Returns when the sentinel reports another master.
    async fn hears_of_another(&self, peer: &Peer, master: &Master) -> RedisResult<()> {
        let silence = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let pushes = Pushes::of_channel(SWITCHED);
        let mut listener = pushes.register(Owner::from_bytes(Vec::new()));
        let conversation = async {
            let login = peer.credentials.login().await.map_err(|error| RedisError::from(std::io::Error::other(error)))?;
            self.converse(peer, &login, ProtocolVersion::RESP3, SIGN_OF_LIFE, &pushes).await
        };
        let (wire, named) = timeout(SIGN_OF_LIFE, conversation).await.map_err(silence)??;
        // It may have come before the subscription.
        if let Some((epoch, host, port)) = named
            && master.is_followed_by(epoch, &host, port)
        {
            return Ok(());
        }
        loop {
            match timeout(LISTEN, listener.next()).await {
                Ok(Some(Pushed::Message(message))) if self.is_about_another(&message, master) => return Ok(()),
                Ok(Some(Pushed::Message(_))) => {}
                Ok(Some(Pushed::Missed) | None) => return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()),
                Err(_) => {
                    let mut ping = pipe();
                    ping.add_command(cmd("PING"));
                    timeout(SIGN_OF_LIFE, wire.send(&ping.into())).await.map_err(silence)??;
                    // This one may be cut off from the others, and hear of nothing.
                    let named = self.master(Instant::now() + SIGN_OF_LIFE).await;
                    if named.is_ok_and(|named| master.is_followed_by(named.epoch, &named.host, named.port)) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Whether a message says that another server is the master. It is `<service> <old host> <old
    /// port> <new host> <new port>`.
    fn is_about_another(&self, message: &[u8], master: &Master) -> bool {
        let text = String::from_utf8_lossy(message);
        let words: Vec<&str> = text.strip_prefix(&*self.service).unwrap_or_default().split_whitespace().collect();
        matches!(words[..], [_, _, host, port] if host != master.host || port.parse() != Ok(master.port))
    }
}

/// Why a sentinel gave no answer.
fn not_asked(shown: &str, error: &RedisError) -> Error {
    let about = |what: &str, fix: &str| Error::refused(format!("the sentinel {shown} {what}")).with_hint(fix);
    let translated = translate(error);
    let told = error.detail().unwrap_or_default();
    if error.code() == Some("NOAUTH") {
        return about(
            "wants a password, and that of the servers is not sent to it",
            "set TENURE_SENTINEL_PASSWORD (or _FILE) or write sentinel_password= in the store URL",
        );
    }
    if error.kind() == redis::ErrorKind::AuthenticationFailed
        || error.code() == Some("WRONGPASS")
        || told.contains("AUTH") && translated.kind() == ErrorKind::Refused
    {
        let fix = "correct sentinel_username= and sentinel_password= (or TENURE_SENTINEL_PASSWORD)";
        return about("does not take this user name and password", fix);
    }
    if told.to_ascii_lowercase().contains("unknown command") {
        let fix = "name the sentinels, whose port is usually 26379; redis:// names a server itself";
        return Error::refused(format!("{shown} is a server and no sentinel")).with_hint(fix);
    }
    if translated.is_transient() && error.code().is_none() {
        return Error::unreachable(format!("{shown}: {error}"))
            .with_hint("make sure that the sentinels run and can be reached from here");
    }
    translated.context(format_args!("the sentinel {shown}"))
}
