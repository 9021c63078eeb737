//! The boot and the machine on which a lease was counted.
//!
//! Deadlines are times of the boot-time clock, which starts anew with every boot and means nothing
//! on another machine.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::{BootTime, Error, ErrorKind};

use super::failure::damaged;

/// Wall-clock time since 1970, in microseconds.
type Micros = i64;

/// This boot of this machine.
#[derive(Debug)]
pub(super) struct Machine {
    /// Followed by the shift of the boot-time clock in a time name space that has one.
    pub(super) boot: String,
    /// Empty if the machine has no id, as in many containers.
    pub(super) id: String,
}

/// The last use of a file, as the file says.
#[derive(Debug)]
pub(super) struct LastUse {
    pub(super) boot: String,
    pub(super) machine: String,
    /// Wall clock at that boot. 0 if a version that did not note it was the last.
    pub(super) booted: Micros,
    /// Wall clock at the last change, except for changes within [`NOTED_EVERY`] of the one before.
    pub(super) written: Micros,
}

/// Facts of the system about a file that another boot has used.
#[derive(Debug)]
pub(super) struct Traces {
    /// Wall clock at this boot, as computed now.
    pub(super) booted: Micros,
    /// Other machines may reach it, by the type of its file system.
    pub(super) shared: bool,
}

impl Traces {
    pub(super) fn of(file: &Path) -> Self {
        Self { booted: booted(), shared: on_network(file) }
    }
}

/// The relation of this process to the last use of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// This boot: its deadlines compare with our clock.
    Here,
    /// An earlier boot of this machine: its leases have ended.
    EarlierBoot,
    /// Another machine, or another clock.
    Elsewhere,
}

/// Without boot ids, a reboot is noticed only by leases that begin in the future.
pub(super) const SEES_REBOOTS: bool = cfg!(target_os = "linux");

/// Largest difference between two computed times of one boot, each from two readings of two clocks.
const SAME_BOOT: Micros = 1_000;

/// How often the time of a change is noted.
pub(super) const NOTED_EVERY: Micros = 1_000_000;

/// 2026-01-01T00:00:00Z. A clock before it at boot was not set, and may show that at every boot.
const CLOCK_IS_SET: Micros = 1_767_225_600_000_000;

impl Machine {
    /// The one this process runs on.
    pub(super) fn this() -> Result<&'static Self, Error> {
        static THIS: OnceLock<Machine> = OnceLock::new();
        if let Some(this) = THIS.get() {
            return Ok(this);
        }
        let this = Self { boot: boot_id()? + &other_clock(), id: machine_id() };
        Ok(THIS.get_or_init(|| this))
    }

    /// Places a file by its last use, and then by its traces. In doubt it is another machine's:
    /// forgetting its leases would make two holders.
    pub(super) fn origin(&self, last: &LastUse, traces: impl FnOnce() -> Traces) -> Origin {
        if last.boot == self.boot {
            return Origin::Here;
        }
        let no_id = last.machine.is_empty() || self.id.is_empty();
        if (!no_id && last.machine != self.id) || kernel(&last.boot) == kernel(&self.boot) {
            return Origin::Elsewhere;
        }
        let traces = traces();
        // A container may have a boot id of its own, and its clock is ours.
        let same_boot = last.booted > CLOCK_IS_SET && (traces.booted - last.booted).abs() <= SAME_BOOT;
        match traces {
            Traces { shared: false, .. } if same_boot => Origin::Here,
            Traces { shared: true, .. } if no_id => Origin::Elsewhere,
            // An earlier boot cannot have written after this one began.
            Traces { booted, .. } if last.written > booted => Origin::Elsewhere,
            _ => Origin::EarlierBoot,
        }
    }

    /// Why a file of another machine is refused.
    pub(super) fn refuses(&self, last: &LastUse, path: &Path) -> Error {
        let why = format!(
            "it is used from two machines (its last user was machine {:?} in boot {:?}, this one is machine {:?} in boot {:?}), which \
             cannot share leases and file locks, e.g. over a network file system",
            last.machine, last.boot, self.id, self.boot
        );
        let fix = "use a redis: store for several machines; if no other uses the file, e.g. because it was copied here or the clock was \
                   set back, delete the file with its -wal and -shm companions, and its locks are free";
        damaged(path, &why, fix)
    }
}

/// The wall clock.
pub(super) fn wall_clock() -> Micros {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Wall clock at this boot. Always the same, until the wall clock is set.
pub(super) fn booted() -> Micros {
    let look = |_| {
        let before = BootTime::now();
        let wall = wall_clock();
        let took = BootTime::now().since(before);
        let boot = wall - micros(before.since_boot() + took / 2);
        (took, boot)
    };
    // The quickest reading: nothing came between its two clocks.
    (0..16).map(look).min_by_key(|(took, _)| *took).map_or(0, |(_, boot)| boot)
}

fn micros(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// A boot id without what a time name space adds to it.
fn kernel(boot: &str) -> &str {
    boot.split(' ').next().unwrap_or(boot)
}

/// Shift of the boot-time clock by a time name space. Empty without one.
fn other_clock() -> String {
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let of_boot = offsets.lines().find_map(|line| line.strip_prefix("boottime"));
    let words: Vec<&str> = of_boot.unwrap_or_default().split_whitespace().collect();
    if words.iter().all(|word| *word == "0") { String::new() } else { format!(" boottime {}", words.join(" ")) }
}

#[cfg(target_os = "linux")]
fn boot_id() -> Result<String, Error> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let read = fs::read_to_string(FILE).map_err(|e| {
        Error::new(ErrorKind::Unsupported, format!("cannot tell whether the machine was restarted: cannot read {FILE}"))
            .with_source(e)
            .with_hint("mount /proc, or use a server as the store")
    })?;
    Ok(read.trim().to_owned())
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the other one can fail")]
fn boot_id() -> Result<String, Error> {
    Ok(String::new())
}

fn machine_id() -> String {
    let read = |file| fs::read_to_string(file).ok().map(|id| id.trim().to_owned()).filter(|id| !id.is_empty());
    read("/etc/machine-id").or_else(|| read("/var/lib/dbus/machine-id")).unwrap_or_default()
}

/// Whether other machines may reach a file, by the type of its file system.
#[cfg(target_os = "linux")]
fn on_network(file: &Path) -> bool {
    // NFS, SMB, CIFS, SMB2, CephFS, AFS (two), 9P, Lustre, GFS2, OCFS2, GPFS, FUSE (and virtiofs),
    // VirtualBox, VMware, Coda, NCP, OrangeFS, BeeGFS, PanFS; see statfs(2).
    const SHARED: [u32; 20] = [
        0x6969,
        0x517B,
        0xFF53_4D42,
        0xFE53_4D42,
        0x00C3_6400,
        0x5346_414F,
        0x6B41_4653,
        0x0102_1997,
        0x0BD0_0BD0,
        0x0116_1970,
        0x7461_636F,
        0x4750_4653,
        0x6573_5546,
        0x786F_4256,
        0xBACB_ACBC,
        0x7375_7245,
        0x564C,
        0x2003_0528,
        0x1983_0326,
        0xAAD7_AAEA,
    ];
    rustix::fs::statfs(file).is_ok_and(|on| SHARED.iter().any(|&kind| i128::from(kind) == i128::from(on.f_type)))
}

#[cfg(not(target_os = "linux"))]
fn on_network(_file: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_placed_by_boot_and_machine_and_then_by_its_traces() {
        const BOOTED: Micros = CLOCK_IS_SET + 10_000_000;
        const LONG_AGO: Micros = BOOTED - 9_000_000;
        let (before, after) = (BOOTED - 5_000_000, BOOTED + 1);
        let place = |(boot, id): (&str, &str), (last, machine): (&str, &str), booted, written, shared| {
            let last = LastUse { boot: last.into(), machine: machine.into(), booted, written };
            Machine { boot: boot.into(), id: id.into() }.origin(&last, || Traces { booted: BOOTED, shared })
        };
        let (named, nameless) = (("b2", "m1"), ("b2", ""));
        for shared in [false, true] {
            assert_eq!(place(named, ("b2", "m2"), 0, after, shared), Origin::Here, "a container of this machine");
            assert_eq!(place(named, ("b1", "m2"), LONG_AGO, before, shared), Origin::Elsewhere, "a known other");
            assert_eq!(place(named, ("b1", "m1"), LONG_AGO, before, shared), Origin::EarlierBoot);
            assert_eq!(place(named, ("b1", "m1"), LONG_AGO, after, shared), Origin::Elsewhere, "a clone");
            assert_eq!(place(named, ("b1", "m1"), 0, 0, shared), Origin::EarlierBoot, "by a version that noted no time");
            assert_eq!(place(nameless, ("b1", ""), LONG_AGO, after, shared), Origin::Elsewhere);
            assert_eq!(place(named, ("b2 boottime 5 0", "m1"), BOOTED, before, shared), Origin::Elsewhere, "another clock");
            assert_eq!(place(("b2 boottime 5 0", "m1"), ("b2", "m1"), BOOTED, before, shared), Origin::Elsewhere);
        }
        for (mine, its) in [("m1", "m1"), ("", "m1"), ("m1", ""), ("", "")] {
            let place = |booted, written, shared| place(("b2", mine), ("b1", its), booted, written, shared);
            assert_eq!(place(BOOTED + SAME_BOOT, after, false), Origin::Here, "a boot id of its own");
            assert_eq!(place(BOOTED + SAME_BOOT, after, true), Origin::Elsewhere, "a coincidence");
            assert_eq!(place(BOOTED + SAME_BOOT + 1, after, false), Origin::Elsewhere);
            let restart = if mine.is_empty() || its.is_empty() { Origin::Elsewhere } else { Origin::EarlierBoot };
            assert_eq!(place(LONG_AGO, before, true), restart);
            assert_eq!(place(LONG_AGO, before, false), Origin::EarlierBoot);
        }
    }

    #[test]
    fn a_clock_that_begins_anew_at_every_boot_tells_nothing() {
        let last = LastUse { boot: "b1".into(), machine: String::new(), booted: 7, written: 9 };
        let this = Machine { boot: "b2".into(), id: String::new() };
        assert_eq!(this.origin(&last, || Traces { booted: 7, shared: false }), Origin::Elsewhere);
    }

    #[test]
    fn a_boot_begins_once() {
        let first = booted();
        for _ in 0..100 {
            assert!((booted() - first).abs() <= SAME_BOOT, "{} after {first}", booted());
        }
    }

    #[test]
    fn this_machine_has_a_boot_id() {
        assert_eq!(Machine::this().unwrap().boot.is_empty(), !SEES_REBOOTS);
    }
}
