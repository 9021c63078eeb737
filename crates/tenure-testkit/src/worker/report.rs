//! Reports of a worker to the lab.

use tenure::{BootTime, Error};

use super::orders::Said;
use crate::history::{What, nanos};
use crate::lines;

/// Tells the lab what happened, now.
pub(super) fn tell(what: What) {
    say(&Said::Event { at: nanos(BootTime::now().since_boot()), what });
}

/// Tells the lab that an acquisition failed.
pub(super) fn failed(acquisition: u32, error: &Error) {
    tell(What::Failed { acquisition, kind: Some(format!("{:?}", error.kind())), text: error.to_string() });
}

/// Reports every panic to the lab, and has it end the process.
pub(super) fn dies_of_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        tell(What::Failed { acquisition: 0, kind: None, text: panic.to_string().replace('\n', " ") });
        std::process::abort();
    }));
}

/// Says one line at once: the next thing that happens may be a kill.
pub(super) fn say(said: &Said) {
    // Nobody listens any more when the lab has ended.
    let _ = lines::say(std::io::stdout().lock(), said);
}
