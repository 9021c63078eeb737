//! A resource without any lock of its own that shows the damage when two holders overlap.
//!
//! Every visit is a read, a pause and a write of one integer, as in a program that trusts its lock, and leaves two lines
//! in a log. Any number of processes may use one directory.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DIGITS: usize = 20;

/// The resource: `counter` and `log` in one directory.
#[derive(Debug)]
pub struct Counter {
    number: File,
    log: File,
    log_path: PathBuf,
}

/// A visit that has begun; it counts only when it is left.
#[derive(Debug)]
#[must_use = "a visit that is not left is not counted"]
pub struct Visit<'a> {
    counter: &'a Counter,
    read: u64,
    id: String,
}

/// Faults that [`Counter::check`] found, one line each.
#[derive(Debug, PartialEq, Eq)]
pub struct Damage(Vec<String>);

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Damage {}

impl Counter {
    /// Makes the resource in `dir`, or starts it again from zero.
    pub fn create(dir: &Path) -> Self {
        let _ = std::fs::remove_file(dir.join("log"));
        let counter = Self::open(dir);
        counter.write(0);
        counter
    }

    /// Opens the resource another process made in `dir`.
    pub fn open(dir: &Path) -> Self {
        let open = |name: &str, options: &mut OpenOptions| {
            options.create(true).open(dir.join(name)).expect("the counter's directory can be written")
        };
        Self {
            number: open("counter", OpenOptions::new().read(true).write(true).truncate(false)),
            log: open("log", OpenOptions::new().append(true)),
            log_path: dir.join("log"),
        }
    }

    /// Begins a visit under `fence` (`None` where the lock gives none): logs the entry and reads the number.
    pub fn enter(&self, fence: impl Into<Option<u64>>) -> Visit<'_> {
        // The system gives the number of a dead process to a new one, within minutes where many are started.
        let id = format!("{}.{:016x}", std::process::id(), RandomState::new().hash_one("visit"));
        let fence = fence.into().map_or_else(|| "-".to_owned(), |fence| fence.to_string());
        self.append(&format!("enter {id} {fence}\n"));
        Visit { counter: self, read: self.value(), id }
    }

    /// A whole visit with a pause in the middle. Blocks the calling thread.
    pub fn visit(&self, fence: impl Into<Option<u64>>, pause: Duration) {
        let visit = self.enter(fence);
        std::thread::sleep(pause);
        visit.leave();
    }

    /// The number now.
    pub fn value(&self) -> u64 {
        let mut text = [0; DIGITS];
        self.number.read_exact_at(&mut text, 0).expect("the counter was created");
        std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).expect("the counter is a number")
    }

    /// Whether `expected` visits were made and counted, none began inside another, and every fence was larger than
    /// the one before.
    ///
    /// A visit that was never left (its process died) overlaps nobody.
    pub fn check(&self, expected: u64) -> Result<(), Damage> {
        let (left, mut damage) = self.judge();
        if left != expected {
            damage.push(format!("{left} visits were made, not {expected}"));
        }
        let total = self.value();
        if total != expected {
            damage.push(format!("the counter is {total} after {expected} visits: updates were lost"));
        }
        if damage.is_empty() { Ok(()) } else { Err(Damage(damage)) }
    }

    /// As [`check`](Self::check), where any number of visits was made and `killed` processes died, each between any two steps of
    /// its last one; how many visits were left.
    pub fn check_with_killed(&self, killed: u64) -> Result<u64, Damage> {
        let (left, mut damage) = self.judge();
        let total = self.value();
        if !(left..=left + killed).contains(&total) {
            damage.push(format!("the counter is {total} after {left} visits and {killed} deaths: updates were lost"));
        }
        if damage.is_empty() { Ok(left) } else { Err(Damage(damage)) }
    }

    /// How many visits were left, and what is wrong with the order of all.
    fn judge(&self) -> (u64, Vec<String>) {
        let log = std::fs::read_to_string(&self.log_path).expect("the log can be read");
        let mut damage = overlaps(&log);
        damage.extend(fences_out_of_order(&log));
        let left = log.lines().filter(|line| line.starts_with("leave ")).count();
        (u64::try_from(left).expect("a usize fits"), damage)
    }

    fn write(&self, number: u64) {
        // One write of a fixed width, so that an overlapping reader sees a number and the loss is counted, not a torn text.
        self.number.write_all_at(format!("{number:0DIGITS$}").as_bytes(), 0).expect("the counter can be written");
    }

    fn append(&self, line: &str) {
        (&self.log).write_all(line.as_bytes()).expect("the log can be written");
    }
}

impl Visit<'_> {
    /// Ends the visit: writes the number it read plus one and logs it.
    pub fn leave(self) {
        self.counter.write(self.read + 1);
        self.counter.append(&format!("leave {}\n", self.id));
    }
}

/// One line for each entry made before an earlier visit was left.
fn overlaps(log: &str) -> Vec<String> {
    let word = |line: &str, n: usize| line.split(' ').nth(n).unwrap_or_default().to_owned();
    let leaves: BTreeMap<String, usize> =
        log.lines().enumerate().filter(|(_, line)| line.starts_with("leave ")).map(|(at, line)| (word(line, 1), at)).collect();
    let mut damage = Vec::new();
    let mut open: Option<(String, usize)> = None;
    for (at, line) in log.lines().enumerate().filter(|(_, line)| line.starts_with("enter ")) {
        let id = word(line, 1);
        if let Some((holder, until)) = open.as_ref().filter(|(_, until)| *until > at) {
            let (here, there) = (at + 1, until + 1);
            damage.push(format!("{id} entered (line {here}) while {holder} was inside (until line {there})"));
        }
        let end = leaves.get(&id).map(|&end| (id, end));
        open = open.into_iter().chain(end).max_by_key(|(_, until)| *until);
    }
    damage
}

/// One line for each fence that was not larger than all before it.
fn fences_out_of_order(log: &str) -> Vec<String> {
    let mut damage = Vec::new();
    let mut largest = None;
    for (at, line) in log.lines().enumerate() {
        let mut words = line.split(' ').skip(1);
        let id = words.next().unwrap_or_default();
        let Some(fence) = words.next().and_then(|fence| fence.parse::<u64>().ok()) else {
            continue;
        };
        if let Some(before) = largest.filter(|before| fence <= *before) {
            damage.push(format!("{id} entered (line {}) with fence {fence} after fence {before}", at + 1));
        }
        largest = largest.max(Some(fence));
    }
    damage
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> (tempfile::TempDir, Counter) {
        let dir = tempfile::tempdir().unwrap();
        let counter = Counter::create(dir.path());
        (dir, counter)
    }

    #[test]
    fn visits_one_after_another_are_in_order() {
        let (dir, counter) = counter();
        counter.visit(1, Duration::ZERO);
        Counter::open(dir.path()).visit(5, Duration::ZERO);
        counter.visit(None, Duration::ZERO);
        assert_eq!(counter.check(3), Ok(()));
        let wrong = counter.check(4).unwrap_err().to_string();
        assert!(wrong.contains("3 visits were made, not 4"), "{wrong}");
        assert_eq!(counter.check_with_killed(0), Ok(3));
    }

    #[test]
    fn an_overlap_is_told_and_loses_an_update() {
        let (_dir, counter) = counter();
        let first = counter.enter(1);
        let second = counter.enter(2);
        first.leave();
        second.leave();
        let damage = counter.check(2).unwrap_err().to_string();
        assert!(damage.contains("(line 2) while") && damage.contains("(until line 3)"), "{damage}");
        assert!(damage.contains("the counter is 1 after 2 visits"), "{damage}");
        let damage = counter.check_with_killed(1).unwrap_err().to_string();
        assert!(damage.contains("(line 2) while") && damage.contains("after 2 visits and 1 deaths"), "{damage}");
    }

    #[test]
    fn a_long_visit_is_seen_behind_a_short_one_inside_it() {
        let (_dir, counter) = counter();
        let long = counter.enter(1);
        counter.enter(2).leave();
        counter.enter(3).leave();
        long.leave();
        assert_eq!(counter.check(3).unwrap_err().0.iter().filter(|line| line.contains("while")).count(), 2);
    }

    #[test]
    fn a_visitor_that_died_inside_overlaps_nobody() {
        let (_dir, counter) = counter();
        let _ = counter.enter(1);
        counter.visit(2, Duration::ZERO);
        assert_eq!(counter.check(1), Ok(()));
        // One that wrote and did not come to say so.
        counter.write(2);
        assert!(counter.check(1).is_err() && counter.check_with_killed(0).is_err());
        assert_eq!(counter.check_with_killed(1), Ok(1));
    }

    #[test]
    fn a_fence_that_is_not_larger_is_told() {
        let (_dir, counter) = counter();
        for fence in [3, 3, 7, 5] {
            counter.visit(fence, Duration::ZERO);
        }
        let damage = counter.check(4).unwrap_err().to_string();
        assert!(damage.contains("with fence 3 after fence 3"), "{damage}");
        assert!(damage.contains("with fence 5 after fence 7"), "{damage}");
    }

    #[test]
    fn unprotected_threads_are_caught() {
        let (dir, counter) = counter();
        let inside = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let counter = Counter::open(dir.path());
                    let visit = counter.enter(None);
                    inside.wait();
                    visit.leave();
                });
            }
        });
        let damage = counter.check(4).unwrap_err();
        assert_eq!(damage.0.iter().filter(|line| line.contains("while")).count(), 3, "{damage}");
        assert_eq!(counter.value(), 1);
    }
}
