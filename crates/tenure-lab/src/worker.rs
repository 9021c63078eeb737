//! The processes under test. The program of the lab becomes them if its role says so.

use std::io;

use crate::{bench, museum, soak};

/// Becomes the process of this role, until standard input ends.
///
/// # Errors
/// For a role that nobody has, and when the process cannot go on.
pub fn serve(role: &[String]) -> io::Result<()> {
    match role.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bench"] => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(bench::serve()),
        ["soak"] => soak::serve(),
        ["museum", scene] => museum::visit(scene),
        _ => tenure_testkit::worker::serve(role),
    }
}
