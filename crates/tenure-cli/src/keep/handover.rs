//! Arguments and environment of a keeper, sent by its starter through a pipe.
//!
//! Other users can read those of a process for as long as it lives, and they may hold a password.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// More words, or longer ones, than the system lets anyone pass as arguments.
const MOST: u64 = 1 << 24;

/// Writes the words, each with its length in front.
pub(super) fn send(to: &mut impl Write, words: &[OsString]) -> io::Result<()> {
    let mut told = Vec::new();
    told.extend((words.len() as u64).to_le_bytes());
    for word in words {
        told.extend((word.len() as u64).to_le_bytes());
        told.extend(word.as_bytes());
    }
    to.write_all(&told)
}

/// Reads what [`send`] wrote, and nothing that follows.
pub(super) fn receive(from: &mut impl Read) -> io::Result<Vec<OsString>> {
    (0..number(from)?).map(|_| word(from)).collect()
}

fn number(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Some(u64::from_le_bytes(bytes)).filter(|number| *number <= MOST).ok_or(ErrorKind::InvalidData.into())
}

fn word(from: &mut impl Read) -> io::Result<OsString> {
    let length = number(from)?;
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(OsString::from_vec(bytes)) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_as_they_are() {
        let words: Vec<OsString> = vec!["a b".into(), OsString::new(), OsString::from_vec(vec![0xff, b'\n'])];
        let mut pipe = Vec::new();
        send(&mut pipe, &words).unwrap();
        pipe.push(b'\n');
        let mut rest = pipe.as_slice();
        assert_eq!(receive(&mut rest).unwrap(), words);
        assert_eq!(rest, b"\n", "what follows is left");
    }

    #[test]
    fn what_is_cut_off_or_no_message_is_refused() {
        let mut pipe = Vec::new();
        send(&mut pipe, &["word".into()]).unwrap();
        for length in 0..pipe.len() {
            assert!(receive(&mut &pipe[..length]).is_err(), "{length}");
        }
        assert!(receive(&mut b"tenure acquire x\n".as_slice()).is_err());
    }
}
