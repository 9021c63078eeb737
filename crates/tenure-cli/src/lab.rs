//! `tenure lab` and `tenure bench`: a program of its own, which is found beside this one or in PATH.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exit::{CANNOT_RUN, Failure, UNREACHABLE};

/// The program that has the two commands.
const PROGRAM: &str = "tenure-lab";

/// Becomes that program, with `args` as they are; returns why it could not.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> Failure {
    let program = beside_us().unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(args).exec();
    if error.kind() == std::io::ErrorKind::NotFound {
        return Failure::new(
            UNREACHABLE,
            "the lab and the benchmarks are a program of their own, tenure-lab, which is neither beside tenure nor in PATH; get \
             it with `cargo install --path crates/tenure-lab`, or `cargo build --release -p tenure-lab` in a checkout",
        );
    }
    Failure::new(CANNOT_RUN, format!("{} cannot be run, {error}; install it anew", program.display()))
}

/// The program in the directory of our own executable, if it is there. Links to ours are followed.
fn beside_us() -> Option<PathBuf> {
    let ours = std::env::current_exe().ok()?;
    let ours = ours.canonicalize().unwrap_or(ours);
    let program = ours.parent()?.join(PROGRAM);
    Path::exists(&program).then_some(program)
}
