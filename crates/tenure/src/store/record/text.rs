//! A record as text that a store keeps: one line for its version, and one for each holder or
//! waiter.
//!
//! Tabs separate the fields of a line. Points in time and spans are whole microseconds. Owners and
//! wake texts are written as owners are displayed: without control characters, and so that they
//! read back. No owner is empty.

use std::fmt;
use std::str::{FromStr, Split};
use std::time::Duration;

use super::{Held, Record, Waiter};
use crate::{Error, ErrorKind, Owner, Share};

/// Beginning of every version's text, and of this one's.
const ANY: &[u8] = b"tenure:record:";
const HEAD: &str = "tenure:record:1";

impl Record {
    /// Reads what [`Display`](fmt::Display) wrote. `None` for a value that is no record.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) for a record that this version cannot read.
    pub fn read(value: &[u8]) -> Result<Option<Self>, Error> {
        if !value.starts_with(ANY) {
            return Ok(None);
        }
        let record = std::str::from_utf8(value).ok().and_then(read);
        record.map(Some).ok_or_else(|| {
            let what = "the value at the name is a record that this version of tenure cannot read";
            Error::new(ErrorKind::Mismatch, what).with_hint("use one version of tenure, or another name")
        })
    }
}

fn read(text: &str) -> Option<Record> {
    let mut lines = text.lines();
    lines.next().filter(|head| *head == HEAD)?;
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for line in lines {
        let mut fields = line.split('\t');
        match fields.next()? {
            "waits" => waiters.push(waiter(&mut fields)?),
            "holds" => holders.push(held(&mut fields, false)?),
            "lingers" => holders.push(held(&mut fields, true)?),
            _ => return None,
        }
        if fields.next().is_some() {
            return None;
        }
    }
    Some(Record::new(holders, waiters))
}

fn held(fields: &mut Split<'_, char>, lingers: bool) -> Option<Held> {
    let (share, counter) = (share(fields)?, parsed(fields)?);
    Some(Held { share, counter, since: span(fields)?, until: span(fields)?, owner: parsed(fields)?, lingers })
}

fn waiter(fields: &mut Split<'_, char>) -> Option<Waiter> {
    let (share, number) = (share(fields)?, parsed(fields)?);
    let (entry_ttl, handoff_ttl, until, owner) = (span(fields)?, span(fields)?, span(fields)?, parsed(fields)?);
    let wake = match fields.next()? {
        "" => String::new(),
        shown => String::from_utf8(shown.parse::<Owner>().ok()?.as_bytes().to_vec()).ok()?,
    };
    Some(Waiter { number, owner, share, entry_ttl, handoff_ttl, until, wake })
}

fn share(fields: &mut Split<'_, char>) -> Option<Share> {
    Share::from_parts(parsed(fields)?, parsed(fields)?)
}

fn span(fields: &mut Split<'_, char>) -> Option<Duration> {
    parsed(fields).map(|micros| if micros == u64::MAX { Duration::MAX } else { Duration::from_micros(micros) })
}

/// A span that is too long for the text is for ever.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn parsed<T: FromStr>(fields: &mut Split<'_, char>) -> Option<T> {
    fields.next()?.parse().ok()
}

/// Writes the text to keep.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        for Held { owner, share, counter, since, until, lingers } in self.holders() {
            let (word, weight, capacity) = (if *lingers { "lingers" } else { "holds" }, share.weight(), share.capacity());
            let (since, until) = (micros(*since), micros(*until));
            write!(f, "\n{word}\t{weight}\t{capacity}\t{counter}\t{since}\t{until}\t{owner}")?;
        }
        for Waiter { number, owner, share, entry_ttl, handoff_ttl, until, wake } in self.waiters() {
            let (weight, capacity) = (share.weight(), share.capacity());
            let [entry_ttl, handoff_ttl, until] = [entry_ttl, handoff_ttl, until].map(|span| micros(*span));
            let wake = Owner::from_bytes(wake.as_bytes());
            write!(f, "\nwaits\t{weight}\t{capacity}\t{number}\t{entry_ttl}\t{handoff_ttl}\t{until}\t{owner}\t{wake}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let ms = Duration::from_millis;
        let owners =
            [Owner::generate("web 1").unwrap(), Owner::from_bytes(&b"\xff\t\n"[..]), Owner::generate("").unwrap().lingering()];
        let share = Share::permits(2, 7).unwrap();
        let holders: Vec<Held> = owners
            .iter()
            .zip([false, false, true])
            .map(|(owner, lingers)| Held { owner: owner.clone(), share, counter: 7, since: ms(1), until: ms(1 << 50), lingers })
            .collect();
        let waiters: Vec<Waiter> = owners
            .iter()
            .zip(1..)
            .map(|(owner, number)| Waiter {
                number,
                owner: owner.clone(),
                share,
                entry_ttl: ms(2),
                handoff_ttl: ms(3),
                until: ms(4),
                wake: if number == 1 { String::new() } else { "app\tone\n:wake".to_owned() },
            })
            .collect();
        let text = Record::new(holders.clone(), waiters.clone()).to_string();
        let read = Record::read(text.as_bytes()).unwrap().unwrap();
        let mut found: Vec<Held> = read.holders().cloned().collect();
        found.sort_by_key(|held| owners.iter().position(|owner| *owner == held.owner));
        assert_eq!(found, holders);
        assert_eq!(read.waiters().cloned().collect::<Vec<_>>(), waiters);
        assert_eq!(read.to_string(), text);
        assert!(Record::read(Record::default().to_string().as_bytes()).unwrap().unwrap().is_empty());
    }

    #[test]
    fn what_never_ends_reads_back() {
        let held = Held {
            owner: Owner::generate("web 1").unwrap(),
            share: Share::READ,
            counter: 7,
            since: Duration::ZERO,
            until: Duration::MAX,
            lingers: false,
        };
        let text = Record::new(vec![held.clone()], Vec::new()).to_string();
        assert_eq!(Record::read(text.as_bytes()).unwrap().unwrap().holders().cloned().collect::<Vec<_>>(), [held]);
    }

    #[test]
    fn what_is_no_record_and_what_is_none_of_this_version() {
        for value in [&b""[..], b"1", b"\xff", b"web-1.0123456789abcdef0123456789abcdef"] {
            assert!(Record::read(value).unwrap().is_none());
        }
        for text in [
            "tenure:record:2",
            "tenure:record:1\nsleeps\t1",
            "tenure:record:1\nholds\t1\t1\t7\t1\tme",
            "tenure:record:1\nholds\t2\t1\t7\t1\t2\tme",
            "tenure:record:1\nholds\t1\t1\t7\t1\t2\tme\tmore",
            "tenure:record:1\nholds\t1\t1\t7\t1\t2\t",
        ] {
            assert_eq!(Record::read(text.as_bytes()).unwrap_err().kind(), ErrorKind::Mismatch, "{text:?}");
        }
    }
}
