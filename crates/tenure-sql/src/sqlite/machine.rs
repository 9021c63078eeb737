//! On which boot of which machine a lease was counted.
//!
//! Deadlines are points on the boot-time clock, which starts anew with every boot and means nothing on another machine.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use tenure::{Error, ErrorKind};

/// This boot of this machine.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) boot: String,
    /// Empty where the machine has no id, as in many containers.
    pub(super) id: String,
}

/// What a file that was last used under `boot` and `machine` is to us.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// This boot: its deadlines compare with our clock.
    Here,
    /// An earlier boot of this machine: nothing in it stands.
    EarlierBoot,
    /// Another machine.
    Elsewhere,
}

/// Where no boot id can be had, a reboot is seen only by leases that begin in the future.
pub(super) const SEES_REBOOTS: bool = cfg!(target_os = "linux");

impl Machine {
    /// The one this process runs on.
    pub(super) fn this() -> Result<&'static Self, Error> {
        static THIS: OnceLock<Machine> = OnceLock::new();
        if let Some(this) = THIS.get() {
            return Ok(this);
        }
        let this = Self { boot: boot_id()?, id: machine_id() };
        Ok(THIS.get_or_init(|| this))
    }

    /// Places a file by what it says of its last use.
    pub(super) fn origin(&self, boot: &str, machine: &str, file: &Path) -> Origin {
        if boot == self.boot {
            return Origin::Here;
        }
        let unknown = machine.is_empty() || self.id.is_empty();
        let same = if unknown { !on_network(file) } else { machine == self.id };
        if same { Origin::EarlierBoot } else { Origin::Elsewhere }
    }
}

#[cfg(target_os = "linux")]
fn boot_id() -> Result<String, Error> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let read = fs::read_to_string(FILE).map_err(|e| {
        Error::new(ErrorKind::Unsupported, format!("cannot tell whether the machine was restarted: cannot read {FILE}"))
            .source(e)
            .fix("mount /proc, or use a server as the store")
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

/// Whether a file lies where other machines may reach it, as far as the type of its file system tells.
#[cfg(target_os = "linux")]
fn on_network(file: &Path) -> bool {
    // NFS, SMB, CIFS, SMB2, CephFS, AFS, 9P, Lustre, GFS2, OCFS2, GPFS; see statfs(2).
    const SHARED: [u32; 11] = [
        0x6969,
        0x517B,
        0xFF53_4D42,
        0xFE53_4D42,
        0x00C3_6400,
        0x5346_414F,
        0x0102_1997,
        0x0BD0_0BD0,
        0x0116_1970,
        0x7461_636F,
        0x4750_4653,
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
    fn a_file_is_placed_by_boot_and_machine() {
        let here = Machine { boot: "b2".into(), id: "m1".into() };
        let nameless = Machine { boot: "b2".into(), id: String::new() };
        let file = Path::new("/");
        assert_eq!(here.origin("b2", "m1", file), Origin::Here);
        assert_eq!(here.origin("b2", "m2", file), Origin::Here, "a container of this machine");
        assert_eq!(here.origin("b1", "m1", file), Origin::EarlierBoot);
        assert_eq!(here.origin("b1", "m2", file), Origin::Elsewhere);
        assert_eq!(here.origin("b1", "", file), Origin::EarlierBoot);
        assert_eq!(nameless.origin("b1", "", file), Origin::EarlierBoot);
    }

    #[test]
    fn this_machine_has_a_boot_id() {
        assert_eq!(Machine::this().unwrap().boot.is_empty(), !SEES_REBOOTS);
    }
}
