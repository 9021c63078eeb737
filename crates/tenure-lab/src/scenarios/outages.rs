//! Stores that holders cannot reach for a while, whatever keeps them from it.

use std::time::{Duration, Instant};

use tenure_testkit::{Proxy, wait_until};

use super::actor::Claim;
use super::stage::{A_MOMENT, DOOR, OPERATION, PATIENCE, POLL, SLACK, Stage, now, terms};

/// A store that was away for longer may be back too late for the next renewal.
const TOO_LONG: Duration = Duration::from_millis(1_450);

/// Delays all messages of a link by so many milliseconds, and cuts them into pieces of so many bytes.
pub(super) fn slow_down(link: &Proxy, delay: u64, bytes: usize) {
    link.delay(Duration::from_millis(delay));
    link.slice(bytes);
    link.throttle(10_000);
}

impl Stage<'_> {
    /// The store is away long enough for a renewal to fail, and the holder loses nothing. One that comes back by itself has no
    /// `come_back`.
    pub(super) fn is_away_for_a_moment(&mut self, leave: impl FnOnce(), come_back: Option<&dyn Fn()>) {
        let (a, b) = (self.near(), self.far());
        let first = a.takes(DOOR);
        first.works(&self.register);
        first.renewed(now());
        let second = b.asks(DOOR, terms());
        self.keeps = true;
        let back_at = Duration::from_millis(self.rng.u64(A_MOMENT));
        let left = self.fault("the store goes away");
        leave();
        let gone = now();
        std::thread::sleep(back_at.saturating_sub(Duration::from_nanos(gone - left)));
        if let Some(come_back) = come_back {
            self.holds_true(!first.is_renewed_in(gone..now()), "a renewal was answered while the store was away");
            come_back();
        }
        let since = self.fault("it is back");
        let away = Duration::from_nanos(since - left);
        if away > TOO_LONG {
            self.starved = Some(format!("the store was away for {away:?}: the machine had no time to bring it back"));
            return;
        }
        first.renewed(since);
        self.ends_well(&first, &second);
    }

    /// The store is away for longer than the validity. The holder is notified at the deadline, and the next is granted when the
    /// store is back.
    pub(super) fn is_away_for_long(&mut self, leave: impl FnOnce(), come_back: impl FnOnce()) {
        let (a, b) = (self.near(), self.far());
        let first = a.takes(DOOR);
        first.runs(&self.register);
        let second = b.asks(DOOR, terms());
        self.some_time();
        leave();
        let left = self.fault("the store is away");
        self.loss_due(self.validity());
        let lost = first.lost();
        self.holds_true(first.last_step() <= Some(lost), "the guard let a step go on");
        std::thread::sleep((self.kept() + SLACK).saturating_sub(Duration::from_nanos(now() - left)));
        let since = now();
        come_back();
        self.fault("it is back");
        self.grant_due_since(since, self.next());
        second.granted();
        second.works(&self.register);
        second.renewed(now());
        self.is_left(&second);
        self.ends_with_another(&a);
    }

    /// The link of one process is cut. The holder learns of its loss from its own clock, before another is granted. Its late
    /// commands do no harm.
    pub(super) fn is_cut_off(&mut self, what: &str, cut: impl FnOnce(), mend: impl FnOnce(), next: Duration) {
        let (a, b) = (self.near(), self.far());
        let first = a.takes(DOOR);
        first.runs(&self.register);
        let second = b.asks(DOOR, terms());
        self.some_time();
        cut();
        self.fault(what);
        self.loss_due(self.validity());
        self.grant_due(next);
        let lost = first.lost();
        self.holds_true(first.last_step() <= Some(lost), "the guard let a step go on");
        second.granted();
        second.works(&self.register);
        mend();
        let since = self.fault("the link is mended");
        second.renewed(since);
        self.is_left(&second);
        self.ends_with_another(&a);
    }

    /// Connections are reset again and again, of the holder and of the one who waits. `accepted` counts connections.
    pub(super) fn is_reset(&mut self, accepted: &dyn Fn() -> u64, mut reset: impl FnMut(&mut Self)) {
        let (a, c) = (self.near(), self.near());
        let first = a.takes(DOOR);
        first.works(&self.register);
        let second = c.asks(DOOR, terms());
        self.keeps = true;
        let connections = accepted();
        for _ in 0..3 {
            reset(self);
            first.renewed(now());
        }
        self.holds_true(accepted() >= connections + 3, "connections are not reset");
        self.grant_due(2 * (POLL + OPERATION) + SLACK);
        self.is_freed(&first);
        second.granted();
        second.renewed(now());
        self.is_freed(&second);
        c.settles();
        self.free_due(DOOR, SLACK);
    }

    /// Messages come late, slowly and in pieces, and nobody loses anything.
    pub(super) fn is_slow(&mut self, link: &Proxy) {
        let (a, b) = (self.near(), self.far());
        // A script that the server does not know yet is too long for such a link.
        self.warms_up(&a);
        let first = a.takes(DOOR);
        first.works(&self.register);
        first.renewed(now());
        let second = b.asks(DOOR, terms());
        self.keeps = true;
        let (delay, bytes) = (self.rng.u64(20..40), self.rng.usize(1..20));
        slow_down(link, delay, bytes);
        self.fault(format!("{delay} ms each way, 10 kB/s, in pieces of {bytes} bytes"));
        for _ in 0..3 {
            first.renewed(now());
        }
        self.grant_due(POLL + OPERATION + SLACK);
        let begun = Instant::now();
        self.is_freed(&first);
        self.holds_true(begun.elapsed() >= Duration::from_millis(2 * delay), "the link is not slow");
        second.granted();
        self.is_left(&second);
    }

    /// If an answer is late or lost the release is repeated, and the second finds nothing.
    pub(super) fn is_freed(&self, holder: &Claim) {
        let how = holder.releases();
        self.holds_true(how == "Released" || how.starts_with("Unknown"), &how);
    }

    /// The clock of the server goes back, so leases last longer by as much. `clock` says by how many milliseconds it is off.
    pub(super) fn is_set_back(&mut self, back: Duration, set: impl FnOnce(), clock: &dyn Fn() -> i64) {
        let (a, _, first, second) = self.begins();
        self.some_time();
        set();
        let since = self.fault(format!("the server's clock is set back by {back:?}"));
        let back_ms = i64::try_from(back.as_millis()).expect("a short time");
        wait_until(PATIENCE, "the server's clock to be set back", || (back_ms + clock()).abs() < 200);
        first.renewed(since);
        first.renewed(now());
        a.kill();
        self.fault("A is killed");
        self.grant_due(self.next() + back);
        second.granted();
        self.is_left(&second);
    }
}
