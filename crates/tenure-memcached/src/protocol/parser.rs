//! Reads replies from the bytes of a connection.

use std::ops::Range;

use tenure::Error;

use super::{Expected, Reply, Value};

/// Longest line of a reply: error texts and statistics are shorter.
const LONGEST_LINE: usize = 8_192;
/// Longest value: servers keep at most 1 GB, and no record comes near.
const LONGEST_VALUE: usize = 1 << 30;

/// Reads replies from bytes as they come.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    bytes: Vec<u8>,
    at: usize,
    stats: Vec<(String, String)>,
}

impl Parser {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Reads the next reply. `None` until all of it is there.
    ///
    /// # Errors
    /// If the bytes are no such reply: nothing behind them can be read.
    pub(crate) fn next(&mut self, expected: Expected) -> Result<Option<Reply>, Error> {
        loop {
            let Some(line) = self.line()? else { return Ok(None) };
            let text = std::str::from_utf8(&self.bytes[line.clone()]).map_err(|_| confused("a line that is no text"))?;
            let after = line.end + 2;
            let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
            match word {
                "STAT" if expected == Expected::Stats => {
                    let (key, value) = rest.split_once(' ').unwrap_or((rest, ""));
                    self.stats.push((key.to_owned(), value.to_owned()));
                    self.at = after;
                    continue;
                }
                "END" if expected == Expected::Stats => {
                    self.at = after;
                    return stats(&std::mem::take(&mut self.stats)).map(Some);
                }
                "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR" => {
                    let reply = Reply::Failed(text.to_owned());
                    self.at = after;
                    return Ok(Some(reply));
                }
                "STORED" | "NOT_STORED" | "EXISTS" | "NOT_FOUND" if expected == Expected::Word => {
                    let reply = if word == "STORED" { Reply::Done } else { Reply::Refused };
                    self.at = after;
                    return Ok(Some(reply));
                }
                _ => {}
            }
            let (size, flags) = if word == "VA" { rest.split_once(' ').unwrap_or((rest, "")) } else { ("", rest) };
            let flags = Words::read(flags)?;
            if flags.opaque.map(Expected::Opaque) != Some(expected) {
                return Err(confused(text));
            }
            let reply = match word {
                "EN" => Reply::Missing,
                "HD" => flags.size.map_or(Reply::Done, |size| Reply::Size { size, flags: flags.flags }),
                "EX" | "NF" => Reply::Refused,
                "VA" => {
                    let size = size.parse::<usize>().ok().filter(|size| *size <= LONGEST_VALUE).ok_or_else(|| confused(text))?;
                    let end = after + size;
                    let Some(tail) = self.bytes.get(end..end + 2) else { return Ok(None) };
                    if tail != b"\r\n" {
                        return Err(confused("a value of another length"));
                    }
                    let version = flags.version.ok_or_else(|| confused("a value without its version"))?;
                    let value = Value { bytes: self.bytes[after..end].to_vec(), version, left: flags.left, flags: flags.flags };
                    self.at = end + 2;
                    return Ok(Some(Reply::Value(value)));
                }
                _ => return Err(confused(text)),
            };
            self.at = after;
            return Ok(Some(reply));
        }
    }

    /// The next line without its end; `None` until all of it is there.
    fn line(&self) -> Result<Option<Range<usize>>, Error> {
        let rest = &self.bytes[self.at..];
        match rest.windows(2).position(|two| two == b"\r\n") {
            Some(length) => Ok(Some(self.at..self.at + length)),
            None if rest.len() > LONGEST_LINE => Err(confused("a line without an end")),
            None => Ok(None),
        }
    }
}

/// Words behind the first one of a reply.
#[derive(Debug, Default)]
struct Words {
    opaque: Option<u32>,
    version: Option<u64>,
    left: Option<u32>,
    flags: u32,
    size: Option<u32>,
}

impl Words {
    fn read(text: &str) -> Result<Self, Error> {
        let mut flags = Self::default();
        for word in text.split_ascii_whitespace() {
            let (letter, value) = word.split_at_checked(1).ok_or_else(|| confused(text))?;
            let bad = |_| confused(text);
            match letter {
                "O" => flags.opaque = Some(value.parse().map_err(bad)?),
                "c" => flags.version = Some(value.parse().map_err(bad)?),
                "s" => flags.size = Some(value.parse().map_err(bad)?),
                "f" => flags.flags = value.parse().map_err(bad)?,
                "t" if value != "-1" => flags.left = Some(value.parse().map_err(bad)?),
                _ => {}
            }
        }
        Ok(flags)
    }
}

fn stats(all: &[(String, String)]) -> Result<Reply, Error> {
    let find = |wanted: &str| all.iter().find(|(key, _)| key == wanted).map(|(_, value)| value);
    let number = |wanted| find(wanted).and_then(|value| value.parse().ok());
    match (number("time"), number("uptime"), find("version")) {
        (Some(time), Some(uptime), Some(version)) => Ok(Reply::Stats { time, uptime, version: version.clone() }),
        _ => Err(Error::refused("the server does not tell its time").with_hint("name a memcached itself, and no proxy for it")),
    }
}

/// Bytes that are no answer of memcached.
fn confused(what: &str) -> Error {
    let what: String = what.chars().take(80).collect();
    Error::unavailable(format!("the server does not speak the meta commands of memcached: {what:?}")).maybe_applied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_in_whatever_pieces_they_come() {
        let all = b"VA 4 c7 t30 f9 O1\r\na\r\nb\r\nEN O2\r\nHD s12 f9 O6\r\nHD O3\r\nEX O4\r\nNF O5\r\nSTORED\r\nNOT_STORED\r\nEXISTS\r\n\
                    SERVER_ERROR out of memory\r\nSTAT time 1700\r\nSTAT uptime 5\r\nSTAT version 1.6.18\r\nEND\r\n\
                    VA 0 c9 t-1 f0 O9\r\n\r\n";
        let expected = [
            (Expected::Opaque(1), Reply::Value(Value { bytes: b"a\r\nb".to_vec(), version: 7, left: Some(30), flags: 9 })),
            (Expected::Opaque(2), Reply::Missing),
            (Expected::Opaque(6), Reply::Size { size: 12, flags: 9 }),
            (Expected::Opaque(3), Reply::Done),
            (Expected::Opaque(4), Reply::Refused),
            (Expected::Opaque(5), Reply::Refused),
            (Expected::Word, Reply::Done),
            (Expected::Word, Reply::Refused),
            (Expected::Word, Reply::Refused),
            (Expected::Word, Reply::Failed("SERVER_ERROR out of memory".to_owned())),
            (Expected::Stats, Reply::Stats { time: 1_700, uptime: 5, version: "1.6.18".to_owned() }),
            (Expected::Opaque(9), Reply::Value(Value { bytes: Vec::new(), version: 9, left: None, flags: 0 })),
        ];
        for size in 1..all.len() {
            let (mut parser, mut left) = (Parser::default(), expected.iter());
            let mut next = left.next();
            for piece in all.chunks(size) {
                parser.add(piece);
                while let Some((kind, reply)) = next {
                    let Some(read) = parser.next(*kind).unwrap() else { break };
                    assert_eq!(read, *reply, "in pieces of {size}");
                    next = left.next();
                }
            }
            assert_eq!(next, None, "in pieces of {size}");
        }
    }

    #[test]
    fn the_answer_to_another_command_is_refused() {
        for text in [
            "EN O2\r\n",
            "EN\r\n",
            "HD O77\r\n",
            "STORED\r\n",
            "END\r\n",
            "VALUE a 0 1\r\n",
            "-ERR unknown\r\n",
            "VA x c1 O1\r\n",
        ] {
            let mut parser = Parser::default();
            parser.add(text.as_bytes());
            assert!(parser.next(Expected::Opaque(1)).is_err(), "{text:?}");
        }
    }
}
