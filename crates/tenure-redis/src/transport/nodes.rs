//! The nodes of a cluster: a connection to each, and which of them serves which slot.
//!
//! A node that does not serve the slot of a command names the one that does, and the command goes
//! there. So an old map costs a round trip and nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::{Client, ConnectionAddr, RedisError, Value};
use tenure::Error;
use tokio::time::{Instant, timeout_at};

use crate::transport::commands::{ASKING, Commands};
use crate::transport::connection::{Connection, Exchange, FIRST_CONTACT, Repeat};
use crate::transport::failure::{translate, unexpected};
use crate::transport::link::Link;
use crate::transport::push::Pushes;
use crate::transport::reply::{Answers, only};

/// How often a command may be sent on.
const REDIRECTS: usize = 5;

/// Number of slots of every cluster.
const SLOTS: usize = 16_384;

/// Where a node is: host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Makes a client for a node.
pub(crate) type Dial = Box<dyn Fn(&Address) -> Result<Client, Error> + Send + Sync>;

pub(crate) struct Nodes {
    dial: Dial,
    pushes: Arc<Pushes>,
    known: Mutex<Known>,
    /// When the cluster was last asked for its map.
    looked: tokio::sync::Mutex<Option<Instant>>,
    me: Weak<Self>,
}

struct Known {
    /// All nodes that were ever named, replicas among them: any of them may know the map.
    nodes: HashMap<Address, Arc<Connection>>,
    /// The node that serves each slot.
    slots: Vec<Option<Arc<Connection>>>,
}

impl Nodes {
    /// Connects to the first of `seeds` that answers, and asks it for the map.
    pub(crate) async fn open(dial: Dial, seeds: Vec<Address>, prefix: &str) -> Result<Arc<Self>, Error> {
        let pushes = Pushes::new(prefix)?;
        let nodes = Arc::new_cyclic(|me| {
            let known = Known { nodes: HashMap::new(), slots: vec![None; SLOTS] };
            Self { dial, pushes, known: Mutex::new(known), looked: tokio::sync::Mutex::default(), me: Weak::clone(me) }
        });
        for seed in seeds {
            nodes.at(&seed)?;
        }
        nodes.look(None, Instant::now() + FIRST_CONTACT).await?;
        Ok(nodes)
    }

    /// The connection to a node. It connects with its first call.
    pub(crate) fn at(&self, address: &Address) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.known().nodes.get(address) {
            return Ok(Arc::clone(connection));
        }
        let client = (self.dial)(address)?;
        if matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. }) {
            // When a slot leaves, its channel ends unasked. The client library, which does TLS, takes that
            // for an answer.
            self.pushes.has_no_slots();
        }
        let connection = Connection::of_node(client, Arc::clone(&self.pushes), Weak::clone(&self.me), address.clone());
        Ok(Arc::clone(self.known().nodes.entry(address.clone()).or_insert_with(|| Arc::new(connection))))
    }

    /// The connection to the node that serves a slot, as far as is known.
    pub(crate) fn of_slot(&self, slot: u16) -> Result<Arc<Connection>, Error> {
        let nobody = || Error::unavailable(format!("no node of the cluster serves slot {slot}")).with_hint("look at its nodes");
        self.known().slots[usize::from(slot)].clone().ok_or_else(nobody)
    }

    /// The connections to all nodes that serve slots.
    pub(crate) fn masters(&self) -> Vec<Arc<Connection>> {
        let mut masters: Vec<Arc<Connection>> = Vec::new();
        for node in self.known().slots.iter().flatten() {
            if !masters.iter().any(|known| Arc::ptr_eq(known, node)) {
                masters.push(Arc::clone(node));
            }
        }
        masters
    }

    /// Asks for the map again after `failed` could not serve `slot`, in the background: the failed
    /// call may have used up its time.
    pub(crate) fn look_again(&self, slot: u16, failed: &Arc<Connection>) -> impl Future<Output = ()> + use<> {
        let (me, failed, since) = (Weak::clone(&self.me), Arc::clone(failed), Instant::now());
        let look = tokio::spawn(async move {
            let Some(nodes) = me.upgrade() else { return };
            let mut looked = nodes.looked.lock().await;
            if !nodes.serves(slot, &failed) || looked.is_some_and(|at| at >= since) {
                return;
            }
            // If nobody answers, the failure of the call says enough.
            let _ = nodes.look(Some((slot, &failed)), Instant::now() + FIRST_CONTACT).await;
            *looked = Some(Instant::now());
        });
        look.map(drop)
    }

    /// The node that serves the slot now, if it is not `failed`, as soon as that is known.
    pub(crate) async fn instead(&self, slot: u16, failed: &Arc<Connection>, end: Instant) -> Option<Arc<Connection>> {
        let _ = timeout_at(end, self.look_again(slot, failed)).await;
        self.of_slot(slot).ok().filter(|other| !Arc::ptr_eq(other, failed))
    }

    fn serves(&self, slot: u16, node: &Arc<Connection>) -> bool {
        self.of_slot(slot).is_ok_and(|serves| Arc::ptr_eq(&serves, node))
    }

    /// Whether a command that nobody waits for may still run after later ones.
    pub(crate) fn have_late_commands(&self) -> bool {
        self.known().nodes.values().any(|node| node.has_late_commands())
    }

    /// Asks all nodes for the map. The first answer counts; after a failure the first that names
    /// another node for the slot, since those that are cut off still name the old one.
    async fn look(&self, failed: Option<(u16, &Arc<Connection>)>, end: Instant) -> Result<(), Error> {
        let nodes: Vec<_> = self.known().nodes.iter().map(|(at, connection)| (at.clone(), Arc::clone(connection))).collect();
        let ask = |(at, connection): (Address, Arc<Connection>)| async move {
            let slots = |_: &Link| Commands::of(&[b"CLUSTER", b"SLOTS"]);
            let told = connection.exchange_here(end, Repeat::Freely, slots).await;
            told.and_then(|told| map_of(told.answers, &at)).map_err(|error| error.context(&at))
        };
        let mut asked: FuturesUnordered<_> = nodes.into_iter().map(ask).collect();
        let mut error = None;
        while let Some(told) = asked.next().await {
            match told {
                Ok(map) => {
                    self.learn(map)?;
                    if !failed.is_some_and(|(slot, failed)| self.serves(slot, failed)) {
                        return Ok(());
                    }
                }
                Err(failed) => error = error.filter(|error: &Error| !error.is_transient()).or(Some(failed)),
            }
        }
        error.map_or(Ok(()), Err)
    }

    fn learn(&self, Map { ranges, others }: Map) -> Result<(), Error> {
        for address in &others {
            self.at(address)?;
        }
        let mut slots = vec![None; SLOTS];
        for (first, last, address) in ranges {
            slots[usize::from(first)..=usize::from(last)].fill(Some(self.at(&address)?));
        }
        self.known().slots = slots;
        Ok(())
    }

    /// Sends those commands on whose answers name another node.
    pub(crate) async fn follow(
        &self,
        from: &Address,
        mut exchange: Exchange,
        commands: &Commands,
        repeat: Repeat,
        end: Instant,
    ) -> Result<Exchange, Error> {
        let commands = commands.each();
        for _ in 0..REDIRECTS {
            let mut targets: Vec<(Redirect, Vec<usize>)> = Vec::new();
            for (at, answer) in exchange.answers.iter().enumerate() {
                let Some(redirect) = answer.as_ref().err().and_then(|error| Redirect::read(error, from)) else { continue };
                match targets.iter_mut().find(|(other, _)| other.leads_with(&redirect)) {
                    Some((_, which)) => which.push(at),
                    None => targets.push((redirect, vec![at])),
                }
            }
            if targets.is_empty() {
                return Ok(exchange);
            }
            for (Redirect { slot, address, asking }, which) in targets {
                let node = self.at(&address)?;
                if !asking {
                    self.known().slots[usize::from(slot)] = Some(Arc::clone(&node));
                }
                let send = |_: &Link| {
                    let mut sent = Commands::new();
                    for at in &which {
                        if asking {
                            sent.ready(1, ASKING);
                        }
                        sent.ready(1, commands[*at]);
                    }
                    sent
                };
                let there = node.exchange_here(end, repeat, send).await;
                let there = match there.map_err(|error| error.context(&address)) {
                    Ok(there) => there,
                    // The others have their answers.
                    Err(error) if which.len() < commands.len() => {
                        for at in which {
                            exchange.answers[at] = Err(std::io::Error::other(error.to_string()).into());
                        }
                        continue;
                    }
                    Err(error) => return Err(if exchange.repeated { error.maybe_applied() } else { error }),
                };
                exchange.repeated |= there.repeated;
                let answers = there.answers.into_iter().skip(asking.into()).step_by(if asking { 2 } else { 1 });
                which.iter().zip(answers).for_each(|(at, answer)| exchange.answers[*at] = answer);
            }
        }
        for answer in exchange.answers.iter_mut().filter(|answer| answer.as_ref().is_err_and(is_redirect)) {
            let why = "the nodes do not agree on who serves the slot".to_owned();
            *answer = Err(redis::make_extension_error("CLUSTERDOWN".to_owned(), Some(why)));
        }
        Ok(exchange)
    }

    pub(crate) fn pushes(&self) -> &Arc<Pushes> {
        &self.pushes
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an answer names another node.
pub(crate) fn is_redirect(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK"))
}

/// An answer that names another node.
#[derive(Debug, PartialEq, Eq)]
struct Redirect {
    slot: u16,
    address: Address,
    /// For this command alone: the slot is on the way there.
    asking: bool,
}

impl Redirect {
    /// Reads `MOVED <slot> <host>:<port>` or the same with `ASK`, as `from` has answered. Without a
    /// host, it is that of `from`.
    fn read(error: &RedisError, from: &Address) -> Option<Self> {
        let asking = is_redirect(error).then(|| error.code() == Some("ASK"))?;
        let (slot, address) = error.detail()?.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let host = if host.is_empty() || host == "?" { &from.host } else { host };
        let address = Address { host: host.to_owned(), port: port.parse().ok()? };
        let slot = slot.parse().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
        Some(Self { slot, address, asking })
    }

    /// Whether commands may be sent on together.
    fn leads_with(&self, other: &Self) -> bool {
        self.address == other.address && self.asking == other.asking && (self.asking || self.slot == other.slot)
    }
}

/// Answer of a node about its cluster.
struct Map {
    ranges: Vec<(u16, u16, Address)>,
    /// All nodes in it.
    others: Vec<Address>,
}

/// Reads the answer to `CLUSTER SLOTS` of the node at `from`.
fn map_of(answers: Answers, from: &Address) -> Result<Map, Error> {
    let told = only(answers)?.map_err(|error| translate(&error))?;
    let odd = || unexpected(format_args!("{told:?} to CLUSTER SLOTS"));
    let Value::Array(rows) = &told else { return Err(odd()) };
    let mut map = Map { ranges: Vec::with_capacity(rows.len()), others: Vec::new() };
    for row in rows {
        let Value::Array(parts) = row else { return Err(odd()) };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = &parts[..] else { return Err(odd()) };
        let slot = |number: i64| u16::try_from(number).ok().filter(|slot| usize::from(*slot) < SLOTS).ok_or_else(odd);
        let nodes: Vec<Address> = nodes.iter().map(|node| address_of(node, from).ok_or_else(odd)).collect::<Result<_, _>>()?;
        let (first, last) = (slot(*first)?, slot(*last)?);
        if first > last {
            return Err(odd());
        }
        map.ranges.push((first, last, nodes.first().ok_or_else(odd)?.clone()));
        map.others.extend(nodes);
    }
    if map.ranges.is_empty() {
        return Err(Error::unavailable("the node knows of no node that serves a slot").with_hint("join it to its cluster"));
    }
    Ok(map)
}

/// Reads a node of `CLUSTER SLOTS`. One that does not know its own host leaves it out.
fn address_of(node: &Value, from: &Address) -> Option<Address> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), ..] = &parts[..] else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && &host[..] != b"?" => String::from_utf8(host.clone()).ok()?,
        _ => from.host.clone(),
    };
    Some(Address { host, port: u16::try_from(*port).ok()? })
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
