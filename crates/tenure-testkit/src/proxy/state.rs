//! Orders of the test and observations of the proxy, shared by both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How a connection goes on after it lost a command or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossMode {
    /// Nothing follows, not even the end of the stream.
    Silence,
    /// The bytes in front of the loss are passed on, then the connection is reset.
    Reset,
}

/// Fault that one command shall meet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Request(LossMode),
    Reply(LossMode),
    Hold(Duration),
}

/// Treatment of the server's pushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pushes {
    #[default]
    Pass,
    /// They wait, and replies overtake them.
    Wait,
    Vanish,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Where new connections lead, if it is not the first server.
    pub(super) leads_to: Option<SocketAddr>,
    pub(super) black_hole: bool,
    pub(super) hold_requests: bool,
    pub(super) hold_replies: bool,
    pub(super) pushes: Pushes,
    /// Connections whose requests are held.
    pub(super) held: BTreeSet<u64>,
    pub(super) delay: Duration,
    /// The most bytes of one write.
    pub(super) slice: Option<usize>,
    /// Bytes a second.
    pub(super) throttle: Option<u32>,
    /// How often every connection is reset.
    pub(super) churn: Option<Duration>,
    /// How often everything was healed: what is older than that waits for no time.
    pub(super) heals: u64,
    /// By the number of the command, counted from the start.
    pub(super) faults: BTreeMap<u64, Fault>,
    pub(super) log: Vec<String>,
    pub(super) replies: u64,
    pub(super) pushed: u64,
    pub(super) live: BTreeSet<u64>,
    /// Connections that lost something.
    pub(super) maimed: BTreeSet<u64>,
    /// Connections that shall be reset.
    pub(super) doomed: BTreeSet<u64>,
    pub(super) admitted: u64,
}

impl State {
    pub(super) fn commands(&self) -> u64 {
        u64::try_from(self.log.len()).expect("a usize fits")
    }

    pub(super) fn plan(&mut self, k: u64, fault: Fault) {
        assert!(k > 0, "commands are counted from 1");
        self.faults.insert(self.commands() + k, fault);
    }

    pub(super) fn heal(&mut self) {
        self.black_hole = false;
        self.hold_requests = false;
        self.hold_replies = false;
        self.pushes = Pushes::Pass;
        self.held.clear();
        self.delay = Duration::ZERO;
        self.slice = None;
        self.throttle = None;
        self.churn = None;
        self.heals += 1;
        self.faults.clear();
        self.doomed.append(&mut self.maimed);
    }

    pub(super) fn cut(&mut self) {
        self.doomed.clone_from(&self.live);
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) opaque: bool,
    /// For how long a connection waits for a server that does not listen yet.
    pub(super) patience: Duration,
    state: Mutex<State>,
    /// Wakes the test's threads.
    moved: Condvar,
    /// Wakes tasks, ours and the test's.
    changed: watch::Sender<()>,
}

impl Shared {
    pub(super) fn opaque() -> Self {
        Self { opaque: true, ..Self::default() }
    }

    pub(super) fn link(patience: Duration) -> Self {
        Self { patience, ..Self::opaque() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.tell();
        result
    }

    /// Wakes everybody who waits for a change of the state.
    pub(super) fn tell(&self) {
        self.moved.notify_all();
        self.changed.send_replace(());
    }

    pub(super) fn admit(&self) -> u64 {
        self.change(|state| {
            state.admitted += 1;
            state.live.insert(state.admitted);
            state.admitted
        })
    }

    pub(super) fn gone(&self, id: u64) {
        self.change(|state| {
            state.live.remove(&id);
            state.maimed.remove(&id);
            state.doomed.remove(&id);
        });
    }

    /// Completes when connection `id` shall be reset.
    pub(super) async fn doomed(&self, id: u64) {
        self.reached(|state| state.doomed.contains(&id)).await;
    }

    pub(super) fn wait_for_resets(&self) {
        let waited = self.moved.wait_while(self.lock(), |state| !state.doomed.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until `reached`; false when that does not come.
    pub(super) fn wait_for(&self, timeout: Duration, reached: impl Fn(&State) -> bool) -> bool {
        let waited = self.moved.wait_timeout_while(self.lock(), timeout, |state| !reached(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        reached(&state)
    }

    /// Completes when `reached`.
    pub(super) async fn reached(&self, reached: impl Fn(&State) -> bool) {
        let mut changed = self.changes();
        while !reached(&self.lock()) && changed.changed().await.is_ok() {}
    }

    /// Resets every connection as often as ordered.
    pub(super) async fn churn(&self) {
        let mut changed = self.changes();
        let mut next = None;
        loop {
            let every = self.lock().churn;
            if every != next.map(|(every, _)| every) {
                next = every.map(|every| (every, Instant::now() + every));
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = sleep_until(next.map_or_else(Instant::now, |(_, at)| at)), if next.is_some() => {
                    self.change(|state| {
                        // It may have been healed meanwhile.
                        if state.churn == every {
                            state.cut();
                        }
                    });
                    next = every.map(|every| (every, Instant::now() + every));
                }
            }
        }
    }
}
