//! The name and the times of the scenarios: by when what must have happened, on the terms that most of them ask for.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use tenure::BootTime;
use tenure_testkit::history::{At, nanos};
use tenure_testkit::worker::Terms;

/// Name that most scenarios lock.
pub(super) const DOOR: &str = "door";
/// The ttl.
pub(super) const TTL: Duration = Duration::from_secs(2);
/// How late a timer or a message may be.
pub(super) const SLACK: Duration = Duration::from_millis(250);
/// The operation timeout of the stores.
pub(super) const OPERATION: Duration = Duration::from_millis(250);
/// How long a waiter may go without a poll.
pub(super) const POLL: Duration = Duration::from_millis(120);
/// From the loss of data to the renewal that tells of it.
pub(super) const RENEWAL: Duration = Duration::from_millis(667 + 250 + 250);
/// From the last renewal to the end of the validity, and the slack.
pub(super) const BELIEF: Duration = Duration::from_millis(1_778 + 250);
/// From the death of a holder to the grant of the next.
pub(super) const NEXT: Duration = Duration::from_millis(2_000 + 120 + 250);
/// How long a process tries to open its store where nothing answers.
pub(super) const OPENING: Duration = Duration::from_secs(5);
/// For how long a name is handed to one that waits: what it costs when that one is dead.
pub(super) const CLAIM: Duration = Duration::from_millis(1_500);
/// How long a waiter with a queue entry goes without a heartbeat.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(1_200);
/// How soon another has what was taken away: one that waits looks after its place about once a second.
pub(super) const SOON: Duration = Duration::from_millis(1_200 + 120 + 250 + 250);
/// In milliseconds: long enough for a renewal to fail, and short enough for the next to be in time.
pub(super) const A_MOMENT: Range<u64> = 950..1_250;
/// How long the lab waits for what has no bound of its own, before it tells what it waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// This moment, as the history has it.
pub(super) fn now() -> At {
    nanos(BootTime::now().since_boot())
}

/// The lab's wall clock, in milliseconds since 1970.
pub(super) fn wall_clock() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(now.as_millis()).expect("a sane clock")
}

/// Waits as long as it takes, and renews.
pub(super) fn terms() -> Terms {
    Terms::new(TTL)
}
