//! The place that the locks of a soak guard. It keeps nobody out, and sees when two are inside who exclude each other.
//!
//! It runs in the process of the lab, and visitors reach it over a unix socket. A visitor says when it enters and when it leaves,
//! and waits for the answer each time. So the next holder enters after the one that released has left. Inside, an exclusive
//! holder reads a number, and as it leaves writes one more than it read, as in a program that trusts its lock.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tenure::{BootTime, Share};
use tenure_testkit::history::{At, nanos};
use tenure_testkit::lines::Service;

use super::report::{Findings, Kind};

/// Message from a visitor, a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Says {
    Enters(Entrance),
    /// The validity of its guard lasts until then.
    Stays {
        visit: u64,
        until: At,
    },
    Leaves {
        visit: u64,
        until: At,
        wrote: u64,
    },
}

/// One who enters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entrance {
    pub(super) who: String,
    pub(super) name: String,
    pub(super) share: Share,
    pub(super) fence: Option<u64>,
    /// When it began to ask for the name.
    pub(super) asked: At,
    /// The end of the validity: it regards itself as the holder until then.
    pub(super) until: At,
}

/// Answer to a visitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) visit: u64,
    pub(super) number: u64,
    /// There were visits enough.
    pub(super) over: bool,
}

/// The place, open until it is dropped.
#[derive(Debug)]
pub(super) struct Referee {
    service: Service,
    places: Arc<Mutex<Places>>,
}

impl Referee {
    /// Opens. With `keeps` the store keeps its data, and no two who exclude each other may be inside; else only fences are judged.
    /// After so many visits to which the store has granted, it reports that it is over.
    pub(super) fn open(keeps: bool, enough: Option<u64>) -> io::Result<Self> {
        let places = Arc::new(Mutex::new(Places { keeps, enough, ..Places::default() }));
        let (hears, forgets) = (Arc::clone(&places), Arc::clone(&places));
        let answer = move |visitor, says| lock(&hears).hear(visitor, says, nanos(BootTime::now().since_boot()));
        Ok(Self { service: Service::open(answer, move |visitor| lock(&forgets).gone(visitor))?, places })
    }

    pub(super) fn path(&self) -> &Path {
        self.service.path()
    }

    /// Number of visits to which the store has granted.
    pub(super) fn granted(&self) -> u64 {
        lock(&self.places).granted
    }

    /// Whether there were visits enough.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.places).is_over()
    }

    /// Returns the findings so far.
    pub(super) fn findings(&self) -> Findings {
        lock(&self.places).findings.clone()
    }
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Places {
    keeps: bool,
    names: HashMap<String, Place>,
    /// The names of those inside, by their visits.
    present: HashMap<u64, String>,
    visits: u64,
    granted: u64,
    enough: Option<u64>,
    findings: Findings,
}

#[derive(Debug, Default)]
struct Place {
    inside: Vec<Inside>,
    number: u64,
    /// The fences of exclusive holders that came later than that of any before, and when.
    fences: Vec<(At, u64)>,
}

#[derive(Debug)]
struct Inside {
    visitor: u64,
    visit: u64,
    read: u64,
    entrance: Entrance,
}

impl Places {
    fn hear(&mut self, visitor: u64, says: Says, now: At) -> Told {
        match says {
            Says::Enters(entrance) => self.enters(visitor, entrance, now),
            Says::Stays { visit, until } => {
                if let Some(inside) = self.inside(visit) {
                    inside.entrance.until = until;
                }
                Told { visit, number: 0, over: self.is_over() }
            }
            Says::Leaves { visit, until, wrote } => self.leaves(visit, until, wrote, now),
        }
    }

    fn enters(&mut self, visitor: u64, entrance: Entrance, now: At) -> Told {
        self.visits += 1;
        // A lease that one task passes to the next keeps the counter of its fence. The index in it rises.
        self.granted += u64::from(entrance.fence.is_none_or(|fence| fence % 1_024 == 0));
        let (visit, keeps, over) = (self.visits, self.keeps, self.is_over());
        self.present.insert(visit, entrance.name.clone());
        let place = self.names.entry(entrance.name.clone()).or_default();
        // The validity of a visitor that was stopped on its way here may have ended.
        if entrance.until > now {
            if let Some(told) = place.overlap(&entrance, now).filter(|_| keeps) {
                self.findings.add_of(Kind::Overlap, told);
            }
            if let Some((kind, told)) = place.out_of_order(&entrance, now, keeps) {
                self.findings.add_of(kind, told);
            }
        }
        let read = place.number;
        place.inside.push(Inside { visitor, visit, read, entrance });
        Told { visit, number: read, over }
    }

    fn is_over(&self) -> bool {
        self.enough.is_some_and(|enough| self.granted >= enough)
    }

    fn leaves(&mut self, visit: u64, until: At, wrote: u64, now: At) -> Told {
        let (keeps, over) = (self.keeps, self.is_over());
        let place = self.present.remove(&visit).and_then(|name| self.names.get_mut(&name));
        if let Some((place, at)) = place.and_then(|place| {
            let at = place.inside.iter().position(|inside| inside.visit == visit)?;
            Some((place, at))
        }) {
            let Inside { read, entrance, .. } = place.inside.swap_remove(at);
            if entrance.share.is_exclusive() && until > now {
                if keeps && place.number != read {
                    let Entrance { who, name, .. } = &entrance;
                    let told = format!("{who} lost an update of {name}: it read {read}, and found {}", place.number);
                    self.findings.add_of(Kind::LostUpdate, told);
                }
                place.number = wrote;
            }
            return Told { visit, number: place.number, over };
        }
        Told { visit, number: 0, over }
    }

    fn inside(&mut self, visit: u64) -> Option<&mut Inside> {
        self.names.get_mut(self.present.get(&visit)?)?.inside.iter_mut().find(|inside| inside.visit == visit)
    }

    fn gone(&mut self, visitor: u64) {
        self.names.values_mut().for_each(|place| place.inside.retain(|inside| inside.visitor != visitor));
    }
}

impl Place {
    /// Those inside who leave no room.
    fn overlap(&self, entrance: &Entrance, now: At) -> Option<String> {
        let others: Vec<&Entrance> =
            self.inside.iter().map(|inside| &inside.entrance).filter(|other| other.until > now).collect();
        let taken: u64 = others.iter().map(|other| u64::from(other.share.weight())).sum();
        let too_much = taken + u64::from(entrance.share.weight()) > u64::from(entrance.share.capacity());
        too_much.then(|| {
            format!("two hold at once: {} beside {}", told(entrance), others.into_iter().map(told).collect::<Vec<_>>().join(", "))
        })
    }

    /// An exclusive holder whose fence is not larger than those before it. Where the store lost its data, one that asked before
    /// another was granted may come after it; and so may one to which its process passed a lease on that the store has forgotten.
    fn out_of_order(&mut self, entrance: &Entrance, now: At, keeps: bool) -> Option<(Kind, String)> {
        let fence = entrance.fence.filter(|_| entrance.share.is_exclusive())?;
        let passed_on = |before: u64| fence % 1_024 > 0 && fence / 1_024 < before / 1_024;
        let late = |at: At, before: u64| !keeps && (at > entrance.asked || passed_on(before));
        let known = |(at, before): &&(At, u64)| *before == fence || (*before > fence && !late(*at, *before));
        let finding = self.fences.iter().find(known).map(|(_, before)| {
            let kind = if *before == fence { Kind::FenceRepeated } else { Kind::FenceFell };
            (kind, format!("a later holder's fence is not larger: {} after {before}", told(entrance)))
        });
        if self.fences.last().is_none_or(|(_, last)| fence > *last) {
            // Nobody asks for so long.
            if self.fences.len() >= MOST_FENCES {
                self.fences.drain(..MOST_FENCES / 2);
            }
            self.fences.push((now, fence));
        }
        finding
    }
}

/// Number of fences that are remembered for a name.
const MOST_FENCES: usize = 4_096;

fn told(entrance: &Entrance) -> String {
    let Entrance { who, name, share, fence, .. } = entrance;
    let fence = fence.map_or_else(String::new, |fence| format!(" with fence {}.{}", fence / 1_024, fence % 1_024));
    format!("{who} in {name} for {share:?}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entrance(share: Share, fence: u64, asked: At, until: At) -> Says {
        Says::Enters(Entrance { who: "P".into(), name: "n".into(), share, fence: Some(fence), asked, until })
    }

    fn found(keeps: bool, says: impl IntoIterator<Item = (At, Says)>) -> Vec<String> {
        let mut places = Places { keeps, ..Places::default() };
        for (at, says) in says {
            places.hear(1, says, at);
        }
        places.findings.told().to_vec()
    }

    #[test]
    fn readers_are_inside_together_and_a_writer_is_not() {
        let reader = |fence| entrance(Share::READ, fence, 0, 100);
        assert_eq!(found(true, [(1, reader(1)), (2, reader(2))]), [""; 0]);
        let beside = found(true, [(1, reader(1)), (2, entrance(Share::WRITE, 3, 0, 100))]);
        assert!(beside[0].starts_with("two hold at once: P in n for 4294967295/4294967295"), "{beside:?}");
        // A visitor whose validity has ended harms nobody, on either side.
        assert_eq!(found(true, [(1, reader(1)), (100, entrance(Share::WRITE, 3, 0, 200))]), [""; 0]);
        assert_eq!(found(true, [(1, reader(1)), (2, entrance(Share::WRITE, 3, 0, 2))]), [""; 0]);
        // One that has renewed does.
        let renewed = [(1, reader(1)), (2, Says::Stays { visit: 1, until: 300 }), (100, entrance(Share::WRITE, 3, 0, 200))];
        assert_eq!(found(true, renewed).len(), 1);
    }

    #[test]
    fn fences_rise() {
        let writer = |fence, asked| entrance(Share::MUTEX, fence, asked, 1_000);
        let leaves = |visit| Says::Leaves { visit, until: 1_000, wrote: visit };
        assert_eq!(found(true, [(1, writer(5, 0)), (2, leaves(1)), (3, writer(6, 0))]), [""; 0]);
        assert_eq!(found(true, [(1, writer(5, 0)), (2, leaves(1)), (3, writer(4, 0))]).len(), 1);
        assert_eq!(found(true, [(1, writer(5, 0)), (2, leaves(1)), (3, writer(5, 0))]).len(), 1);
        // After a flush two may hold, and the one that asked first may come last.
        assert_eq!(found(false, [(10, writer(5, 0)), (12, writer(4, 9))]), [""; 0]);
        assert_eq!(found(false, [(10, writer(5, 0)), (12, writer(4, 11))]).len(), 1);
        // And a lease that is lost may pass on within its process, with the next fence of the same grant.
        let (old, new) = (5 * 1_024 + 3, 6 * 1_024);
        assert_eq!(found(false, [(10, writer(new, 0)), (12, writer(old, 11))]), [""; 0]);
        assert_eq!(found(true, [(10, writer(new, 0)), (11, leaves(1)), (12, writer(old, 11))]).len(), 1);
        assert_eq!(found(false, [(10, writer(old, 0)), (12, writer(old - 1, 11))]).len(), 1);
    }

    #[test]
    fn a_lost_update_is_seen() {
        let writes = |visit, wrote| Says::Leaves { visit, until: 1_000, wrote };
        let holder = |fence| entrance(Share::MUTEX, fence, 0, 1_000);
        let lost = found(true, [(1, holder(1)), (2, holder(2)), (3, writes(2, 1)), (4, writes(1, 1))]);
        assert_eq!(lost.last().unwrap(), "P lost an update of n: it read 0, and found 1");
        assert_eq!(found(true, [(1, holder(1)), (3, writes(1, 1)), (4, holder(2)), (5, writes(2, 2))]), [""; 0]);
    }

    #[test]
    fn one_that_was_killed_is_inside_no_more() {
        let mut places = Places { keeps: true, ..Places::default() };
        places.hear(1, entrance(Share::MUTEX, 1, 0, 1_000), 1);
        places.gone(1);
        places.hear(2, entrance(Share::MUTEX, 2, 0, 1_000), 2);
        assert_eq!(places.findings.told(), [""; 0]);
    }
}
