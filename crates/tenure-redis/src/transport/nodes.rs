//! The nodes of a cluster: a connection to each, and which of them serves which slot.
//!
//! A node that does not serve the slot of a command names the one that does, and the command goes
//! there. So an old map costs a round trip and nothing else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::ConnectionAddr;
use tenure::Error;
use tenure::store::too_few;
use tokio::time::{Instant, timeout_at};

use crate::transport::address::{Address, Map, Redirect, SLOTS, is_redirect, map_of};
use crate::transport::commands::{ASKING, Commands};
use crate::transport::connection::{Connection, FIRST_CONTACT};
use crate::transport::dial::Peer;
use crate::transport::exchange::{Exchange, OtherNodes, Repeat};
use crate::transport::link::Link;
use crate::transport::push::Pushes;

/// How often a command may be sent on.
const REDIRECTS: usize = 5;

/// Time that the other nodes have for their map when one has answered, and pause between two looks. A
/// master that is silent does not answer either.
const PACE: Duration = Duration::from_millis(250);

/// Other channels that were left and that the nodes still have.
const MOST_LEFT: usize = 256;

/// The way to a node.
pub(crate) type Dial = Box<dyn Fn(&Address) -> Result<Peer, Error> + Send + Sync>;

pub(crate) struct Nodes {
    dial: Dial,
    pushes: Arc<Pushes>,
    /// Other channels that nobody listens to any more, and that the nodes still have.
    left: AtomicUsize,
    known: Mutex<Known>,
    /// When the cluster was last asked for its map. Held while it is asked.
    looked: tokio::sync::Mutex<Option<Instant>>,
    /// Until when it is asked again and again.
    searching: Mutex<Option<Instant>>,
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
        let pushes = Pushes::in_cluster(prefix)?;
        let nodes = Arc::new_cyclic(|me| {
            let known = Known { nodes: HashMap::new(), slots: vec![None; SLOTS] };
            Self {
                dial,
                pushes,
                left: AtomicUsize::new(0),
                known: Mutex::new(known),
                looked: tokio::sync::Mutex::default(),
                searching: Mutex::default(),
                me: Weak::clone(me),
            }
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
        let peer = (self.dial)(address)?;
        if matches!(peer.info().addr(), ConnectionAddr::TcpTls { .. }) {
            // When a slot leaves, its channel ends unasked. The client library, which does TLS, takes that
            // for an answer.
            self.pushes.has_no_slots();
        }
        let connection = Connection::of_node(peer, &self.pushes, self.me.clone(), address.clone());
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

    /// Asks for the map again after `failed`, or nobody, could serve `slot`, in the background: the failed
    /// call may have used up its time. If no other node does so far, it is asked again for a while.
    pub(crate) fn look_again(&self, slot: u16, failed: Option<&Arc<Connection>>) -> impl Future<Output = ()> + use<> {
        let (me, failed, since) = (Weak::clone(&self.me), failed.cloned(), Instant::now());
        let look = tokio::spawn(async move {
            let Some(nodes) = me.upgrade() else { return };
            if !nodes.look_since(slot, failed.as_ref(), since).await {
                nodes.search(slot, failed);
            }
        });
        look.map(drop)
    }

    /// Asks for the map unless it was asked for since then. Returns whether another node serves the slot.
    async fn look_since(&self, slot: u16, failed: Option<&Arc<Connection>>, since: Instant) -> bool {
        let mut looked = self.looked.lock().await;
        if self.of_another(slot, failed).is_none() && looked.is_none_or(|at| at < since) {
            *looked = Some(Instant::now());
            // If nobody answers, the failure of the call says enough.
            let _ = self.look(Some((slot, failed)), Instant::now() + FIRST_CONTACT).await;
        }
        self.of_another(slot, failed).is_some()
    }

    /// Asks for the map until another node serves the slot, or no call has failed for a while. A replica takes
    /// over when the others have missed its master for some seconds.
    fn search(&self, slot: u16, failed: Option<Arc<Connection>>) {
        let until = self.searching().replace(Instant::now() + FIRST_CONTACT);
        if until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        let me = Weak::clone(&self.me);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PACE).await;
                let Some(nodes) = me.upgrade() else { return };
                let found = nodes.look_since(slot, failed.as_ref(), Instant::now()).await;
                let mut until = nodes.searching();
                if found || until.is_none_or(|until| until <= Instant::now()) {
                    *until = None;
                    return;
                }
            }
        });
    }

    /// The node that serves the slot now, if it is not `failed`, as soon as that is known.
    pub(crate) async fn instead(&self, slot: u16, failed: Option<&Arc<Connection>>, end: Instant) -> Option<Arc<Connection>> {
        let _ = timeout_at(end, self.look_again(slot, failed)).await;
        self.of_another(slot, failed)
    }

    /// The node that serves the slot, as far as is known, if it is not `failed`.
    fn of_another(&self, slot: u16, failed: Option<&Arc<Connection>>) -> Option<Arc<Connection>> {
        self.of_slot(slot).ok().filter(|other| failed.is_none_or(|failed| !Arc::ptr_eq(other, failed)))
    }

    /// Whether a command that nobody waits for may still run after later ones.
    pub(crate) fn have_late_commands(&self) -> bool {
        self.known().nodes.values().any(|node| node.has_late_commands())
    }

    /// Asks all nodes for the map. The first answer counts; after a failure the first that names
    /// another node for the slot, since those that are cut off still name the old one.
    async fn look(&self, failed: Option<(u16, Option<&Arc<Connection>>)>, mut end: Instant) -> Result<(), Error> {
        let asked_until = end;
        let nodes: Vec<_> = self.known().nodes.iter().map(|(at, connection)| (at.clone(), Arc::clone(connection))).collect();
        let ask = |(at, connection): (Address, Arc<Connection>)| async move {
            let slots = |_: &Link| Commands::of(&[b"CLUSTER", b"SLOTS"]);
            let told = connection.exchange_here(asked_until, Repeat::Freely, slots).await;
            told.and_then(|told| map_of(told.answers, &at)).map_err(|error| error.context(&at))
        };
        let mut asked: FuturesUnordered<_> = nodes.into_iter().map(ask).collect();
        let (spare, mut failures) = (asked.len().saturating_sub(1), Vec::new());
        while let Ok(Some(told)) = timeout_at(end, asked.next()).await {
            match told {
                Ok(map) => {
                    self.learn(map)?;
                    if failed.is_none_or(|(slot, failed)| self.of_another(slot, failed).is_some()) {
                        return Ok(());
                    }
                    end = end.min(Instant::now() + PACE);
                }
                Err(failed) => failures.push(failed),
            }
        }
        let has_map = failures.len() + asked.len() <= spare;
        if has_map { Ok(()) } else { Err(too_few("no node of the cluster names the others", spare, asked.len(), failures)) }
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

    /// Sends those commands on whose answers name another node. All nodes at once: one that is silent
    /// holds up nothing at another.
    async fn send_on(
        &self,
        from: &Address,
        mut exchange: Exchange,
        commands: &Commands,
        repeat: Repeat,
        end: Instant,
    ) -> Result<Exchange, Error> {
        let commands = commands.each();
        // Whose answer it is: a redirect may leave out the host of the node that it comes from.
        let mut sources = vec![from.clone(); exchange.answers.len()];
        for _ in 0..REDIRECTS {
            let mut targets: Vec<(Address, bool, Vec<usize>)> = Vec::new();
            for (at, answer) in exchange.answers.iter().enumerate() {
                let redirect = answer.as_ref().err().and_then(|error| Redirect::read(error, &sources[at]));
                let Some(Redirect { slot, address, asking }) = redirect else { continue };
                if !asking {
                    let node = self.at(&address)?;
                    self.known().slots[usize::from(slot)] = Some(node);
                }
                match targets.iter_mut().find(|(to, with, _)| *to == address && *with == asking) {
                    Some((_, _, which)) => which.push(at),
                    None => targets.push((address, asking, vec![at])),
                }
            }
            if targets.is_empty() {
                return Ok(exchange);
            }
            let send = |(address, asking, which): (Address, bool, Vec<usize>)| {
                let commands = &commands;
                // With others, it leaves them time for another try: a node may not know the script yet.
                let left = end.saturating_duration_since(Instant::now());
                let end = if which.len() < commands.len() { end - left / 2 } else { end };
                async move {
                    let sent = |_: &Link| {
                        let mut sent = Commands::new();
                        for at in &which {
                            if asking {
                                sent.ready(1, ASKING);
                            }
                            sent.ready(1, commands[*at]);
                        }
                        sent
                    };
                    let there = match self.at(&address) {
                        Ok(node) => node.exchange_here(end, repeat, sent).await.map_err(|error| error.context(&address)),
                        Err(error) => Err(error),
                    };
                    (which, asking, address, there)
                }
            };
            for (which, asking, address, there) in join_all(targets.into_iter().map(send)).await {
                for at in &which {
                    sources[*at] = address.clone();
                }
                match there {
                    Ok(there) => {
                        exchange.repeated |= there.repeated;
                        let answers = there.answers.into_iter().skip(asking.into()).step_by(if asking { 2 } else { 1 });
                        which.iter().zip(answers).for_each(|(at, answer)| exchange.answers[*at] = answer);
                    }
                    // The others have their answers.
                    Err(error) if which.len() < commands.len() => {
                        for at in which {
                            exchange.answers[at] = Err(std::io::Error::other(error.to_string()).into());
                        }
                    }
                    Err(error) => return Err(if exchange.repeated { error.maybe_applied() } else { error }),
                }
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

    fn searching(&self) -> MutexGuard<'_, Option<Instant>> {
        self.searching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OtherNodes for Nodes {
    fn follow<'a>(
        &'a self,
        from: &'a Address,
        exchange: Exchange,
        commands: &'a Commands,
        repeat: Repeat,
        end: Instant,
    ) -> BoxFuture<'a, Result<Exchange, Error>> {
        self.send_on(from, exchange, commands, repeat, end).boxed()
    }

    fn leave_channel(&self) {
        if self.left.fetch_add(1, Ordering::Relaxed) + 1 < MOST_LEFT {
            return;
        }
        self.left.store(0, Ordering::Relaxed);
        self.known().nodes.values().for_each(|node| node.hear_nothing_else());
    }
}
