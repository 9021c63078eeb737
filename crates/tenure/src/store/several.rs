//! Several servers: how long each is asked, and the error if too few could be used.

use std::time::Duration;

use crate::{Error, ErrorKind, Holder, Name};

/// Refuses to answer for a holder of which too few servers know.
pub(crate) fn check_certain(holder: &Holder, name: &Name) -> Result<(), Error> {
    if !holder.in_doubt {
        return Ok(());
    }
    let what = format!("too few servers could be asked whether {:?} is held by {}", name.as_str(), holder.owner);
    Err(Error::unavailable(what).with_hint("look at `tenure show --servers`"))
}

/// Returns the turn of the first of so many `servers` that are asked one after another, with so much time left: an equal share.
/// One that is silent leaves the others theirs. For authors of stores.
pub fn turn(left: Duration, servers: usize) -> Duration {
    left / u32::try_from(servers).unwrap_or(u32::MAX).max(1)
}

/// Returns the error of several servers of which more than `spare` could not be used. They have `failures`, and `silent`
/// of them gave no answer in time. For authors of stores.
///
/// Its kind is the mildest of those that decide: without the servers with it, and those with harder ones, too few are left.
/// A person is asked for only where no waiting can help, whatever the other servers will answer. The text is `what`, and
/// a failure of each kind. The failure of a single server is returned as it is.
///
/// The error is that of a call that was certainly not applied.
pub fn too_few(what: impl Into<String>, spare: usize, silent: usize, failures: impl IntoIterator<Item = Error>) -> Error {
    let mut failures: Vec<Error> = failures.into_iter().collect();
    if (failures.len(), spare, silent) == (1, 0, 0) {
        return failures.remove(0);
    }
    failures.extend(std::iter::repeat_n(Error::unreachable("no answer in time"), silent));
    failures.sort_by_key(|error| std::cmp::Reverse(hardness(error.kind())));
    let decides = failures.get(spare).or(failures.last().filter(|error| error.is_transient()));
    let told = |(first, more): (&Error, &[Error])| {
        let others = if more.is_empty() { String::new() } else { format!(" (and {} more)", more.len()) };
        format!("{}{others}", first.reason())
    };
    let kinds = failures.chunk_by(|one, other| one.kind() == other.kind());
    let told: Vec<String> = kinds.filter_map(<[Error]>::split_first).map(told).collect();
    let (what, mark) = (what.into(), if told.is_empty() { "" } else { ": " });
    let kind = decides.map_or(ErrorKind::Unreachable, Error::kind);
    let error = Error::new(kind, format!("{what}{mark}{}", told.join(", ")));
    match decides.and_then(Error::hint) {
        Some(fix) => error.with_hint(fix),
        None => error,
    }
}

/// Rank of a kind: the least for what is over soonest, the largest for what a person has to mend.
const fn hardness(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Overloaded => 0,
        ErrorKind::Unavailable => 1,
        ErrorKind::Unreachable => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of every combination at five servers, of which one or more were needed.
    #[test]
    fn a_person_is_asked_for_where_the_others_cannot_make_it_work() {
        const KINDS: [ErrorKind; 4] = [ErrorKind::Refused, ErrorKind::Unreachable, ErrorKind::Unavailable, ErrorKind::Overloaded];
        for (number, spare) in (0..4_usize.pow(5)).flat_map(|number| (0..5).map(move |spare| (number, spare))) {
            let kinds: Vec<ErrorKind> = (0..5).map(|at| KINDS[number / 4_usize.pow(at) % 4]).collect();
            let error = too_few("x", spare, 0, kinds.iter().map(|kind| Error::new(*kind, format!("{kind:?}"))));
            let persons = kinds.iter().filter(|kind| **kind == ErrorKind::Refused).count();
            assert_eq!(error.is_transient(), persons <= spare, "{kinds:?}, {spare}");
            assert!(kinds.iter().all(|kind| error.to_string().contains(&format!("{kind:?}"))), "{error}");
        }
        // One that is silent may be well.
        assert!(too_few("x", 1, 1, [Error::refused("y")]).is_transient());
    }
}
