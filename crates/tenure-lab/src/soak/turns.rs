//! A quorum of which one server is always away, in each way in turn.
//!
//! The next one goes away when the others are a majority that votes. So a majority can answer at each moment. A
//! [witness](super::witness) says whether it could.
//!
//! In every other turn it goes as soon as that, for a moment only: the others may not have all leases yet, and a server that
//! forgets is back while they stand. Leases are lost then. No two may hold one.

use std::time::Duration;

use fastrand::Rng;
use tenure::{BootTime, Error};

use super::absence::Absence;
use super::faults::Nodes;
use super::report::ServerFaults;
use super::witness::{SETTLED, Witness, now};

/// How long one is away, ms.
const AWAY: std::ops::Range<u64> = 1_000..4_000;
const A_MOMENT: std::ops::Range<u64> = 0..200;
/// Longest time until it votes again: that of a lease, of what is under way, and of another try, on a busy machine.
const BACK: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Has one server after another go away until `end`, or until `is_over`; how often.
pub(super) fn take_turns(
    nodes: &Nodes,
    witness: &Witness,
    seed: u64,
    end: BootTime,
    is_over: impl Fn() -> bool,
) -> Result<(u64, ServerFaults), Error> {
    let (mut rng, mut servers, mut copy) = (Rng::with_seed(seed), ServerFaults::default(), None);
    let mut back = vec![0; nodes.0.len()];
    // Each server goes away in each way.
    let turn = |number: usize| ((number + number / Absence::ALL.len()) % nodes.0.len(), number % Absence::ALL.len());
    for number in 0.. {
        let (at, how) = turn(number);
        let late = BootTime::now() + BACK;
        let at_once = rng.bool();
        while !witness.can_spare(at, &back, if at_once { Duration::ZERO } else { SETTLED }) {
            if BootTime::now() >= end || is_over() {
                return Ok((servers.away.iter().sum(), servers));
            }
            if BootTime::now() >= late {
                return Err(Error::unavailable(format!("the servers did not vote again within {BACK:?}: {}", witness.told())));
            }
            std::thread::sleep(PAUSE);
        }
        if BootTime::now() >= end || is_over() {
            break;
        }
        let ((server, proxy), absence) = (&nodes.0[at], Absence::ALL[how]);
        absence.begin(server, proxy);
        servers.away[how] += 1;
        let (next, next_how) = turn(number + 1);
        let next_copy = (Absence::ALL[next_how] == Absence::OlderCopy).then(|| nodes.0[next].0.snapshot());
        let away = Duration::from_millis(rng.u64(if at_once { A_MOMENT } else { AWAY }));
        std::thread::sleep(away.min(end.since(BootTime::now())));
        absence.end(server, proxy, copy.as_ref());
        back[at] = now();
        copy = next_copy;
    }
    Ok((servers.away.iter().sum(), servers))
}
