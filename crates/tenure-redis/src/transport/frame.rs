//! Reading the frames of the Redis protocol, RESP2 and RESP3, from bytes that come in pieces.
//!
//! The frames of the hot path are read here. Rarer kinds go to the client library's parser once
//! they are complete.

use redis::{RedisResult, Value};

/// Deepest nesting of arrays.
const DEPTH: usize = 8;

/// Finds the end of a frame that came in pieces. Looks at each byte once.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    at: usize,
    /// Frames that are missing before `at` is the end, minus one: 0 at the start means one frame.
    more: usize,
}

enum Quick {
    Value(Value),
    Incomplete,
    /// A frame for the client library's parser.
    Other,
}

/// The first frame in `bytes` and its length. None while it is incomplete. `scanner` keeps the
/// state of the frame, and is reset at its end.
pub(crate) fn read(bytes: &[u8], scanner: &mut Scanner) -> RedisResult<Option<(Value, usize)>> {
    if scanner.at == 0 {
        let mut at = 0;
        match quick(bytes, &mut at, DEPTH) {
            Quick::Value(value) => return Ok(Some((value, at))),
            Quick::Incomplete | Quick::Other => {}
        }
    }
    let Some(length) = scanner.advance(bytes)? else { return Ok(None) };
    *scanner = Scanner::default();
    let mut at = 0;
    match quick(&bytes[..length], &mut at, DEPTH) {
        Quick::Value(value) => Ok(Some((value, length))),
        Quick::Incomplete | Quick::Other => Ok(Some((rare(&bytes[..length])?, length))),
    }
}

fn rare(frame: &[u8]) -> RedisResult<Value> {
    // An error may repeat what the client sent, any bytes and cut anywhere. A line has no length
    // that would have to agree.
    if matches!(frame.first(), Some(b'-' | b'+')) {
        return redis::parse_redis_value(String::from_utf8_lossy(frame).as_bytes());
    }
    redis::parse_redis_value(frame)
}

fn quick(bytes: &[u8], at: &mut usize, depth: usize) -> Quick {
    let rest = &bytes[*at..];
    let Some(&kind) = rest.first() else { return Quick::Incomplete };
    if !b"+:$*_".contains(&kind) || depth == 0 {
        return Quick::Other;
    }
    let Some((line, head)) = line(rest) else { return Quick::Incomplete };
    *at += head;
    if kind == b'+' {
        return match line {
            // The reply to each command of a transaction: as good as OK, and it takes no memory.
            b"OK" | b"QUEUED" => Quick::Value(Value::Okay),
            _ => std::str::from_utf8(line).map_or(Quick::Other, |text| Quick::Value(Value::SimpleString(text.to_owned()))),
        };
    }
    if kind == b'_' {
        return Quick::Value(Value::Nil);
    }
    let Some(number) = number(line) else { return Quick::Other };
    let length = match kind {
        b':' => return Quick::Value(Value::Int(number)),
        _ if number == -1 => return Quick::Value(Value::Nil),
        _ => match usize::try_from(number) {
            Ok(length) => length,
            Err(_) => return Quick::Other,
        },
    };
    if kind == b'$' {
        let rest = &bytes[*at..];
        if rest.len() < length.saturating_add(2) {
            return Quick::Incomplete;
        }
        *at += length + 2;
        return Quick::Value(Value::BulkString(rest[..length].to_vec()));
    }
    let mut values = Vec::with_capacity(length.min(rest.len()));
    for _ in 0..length {
        match quick(bytes, at, depth - 1) {
            Quick::Value(value) => values.push(value),
            other => return other,
        }
    }
    Quick::Value(Value::Array(values))
}

impl Scanner {
    fn advance(&mut self, bytes: &[u8]) -> RedisResult<Option<usize>> {
        loop {
            let Some(rest) = bytes.get(self.at..).filter(|rest| !rest.is_empty()) else { return Ok(None) };
            let Some((line, head)) = line(rest) else { return Ok(None) };
            let count = || number(line).and_then(|number| usize::try_from(number.max(0)).ok()).ok_or_else(malformed);
            let (mut skip, mut inside) = (head, 0_usize);
            match rest[0] {
                b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
                b'$' | b'!' | b'=' if line == b"-1" => {}
                b'$' | b'!' | b'=' => skip = head.saturating_add(count()?).saturating_add(2),
                b'*' | b'~' | b'>' => inside = count()?,
                b'%' => inside = count()?.saturating_mul(2),
                // Attributes stand before the frame they describe.
                b'|' => inside = count()?.saturating_mul(2).saturating_add(1),
                _ => return Err(malformed()),
            }
            if rest.len() < skip {
                return Ok(None);
            }
            self.at += skip;
            self.more = self.more.saturating_add(inside);
            if self.more == 0 {
                return Ok(Some(self.at));
            }
            self.more -= 1;
        }
    }
}

/// The first line without its kind and end, and its length.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    match bytes.get(end + 1) {
        Some(b'\n') => Some((bytes.get(1..end).unwrap_or_default(), end + 2)),
        Some(_) => {
            let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
            Some((bytes.get(1..end).unwrap_or_default(), end + 2))
        }
        None => None,
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    let (sign, digits) = match digits.strip_prefix(b"-") {
        Some(digits) => (-1, digits),
        None => (1, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Counted down, because there is one more negative number than positive ones.
    let negative = digits.iter().try_fold(0_i64, |number, digit| {
        let digit = i64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        number.checked_mul(10)?.checked_sub(digit)
    })?;
    negative.checked_mul(-sign)
}

fn malformed() -> redis::RedisError {
    (redis::ErrorKind::Parse, "the answer is not in the Redis protocol").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: &[&[u8]] = &[
        b"+OK\r\n",
        b"+PONG\r\n",
        b":0\r\n",
        b":-9223372036854775808\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"_\r\n",
        b"$0\r\n\r\n",
        b"$4\r\n\r\n\xff \r\n",
        b"-ERR what\r\n",
        b"-NOSCRIPT No matching script.\r\n",
        b"*0\r\n",
        b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n+x\r\n_\r\n",
        b"*2\r\n:1\r\n-OOM no\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\na b\r\n",
        b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n#t\r\n",
        b"=7\r\ntxt:a b\r\n",
        b",1.5\r\n",
        b"~1\r\n(123\r\n",
        b"!5\r\nERR x\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    ];

    fn read_all(chunks: impl Iterator<Item = Vec<u8>>) -> Vec<Value> {
        let (mut bytes, mut scanner, mut values) = (Vec::new(), Scanner::default(), Vec::new());
        for chunk in chunks {
            bytes.extend(chunk);
            while let Some((value, length)) = read(&bytes, &mut scanner).unwrap() {
                values.push(value);
                bytes.drain(..length);
            }
        }
        assert!(bytes.is_empty(), "{bytes:?} are left");
        values
    }

    #[test]
    fn frames_in_any_pieces_are_what_the_library_reads() {
        let expected: Vec<Value> = FRAMES.iter().map(|frame| redis::parse_redis_value(frame).unwrap()).collect();
        let stream = FRAMES.concat();
        for size in 1..=stream.len() {
            assert_eq!(read_all(stream.chunks(size).map(<[u8]>::to_vec)), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_in_any_bytes_is_read() {
        let frames = [&b"-ERR what is \xe9\x94\r\n"[..], b"+\xff\r\n", b":1\r\n"].concat();
        let values = read_all([frames].into_iter());
        assert!(
            matches!(&values[..], [Value::ServerError(error), Value::SimpleString(_), Value::Int(1)] if error.code() == "ERR")
        );
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for bytes in [&b"HTTP/1.1 400\r\n"[..], b"$x\r\n", b"*99999999999999999999\r\n", b"\r\n"] {
            assert!(read(bytes, &mut Scanner::default()).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_queued_command_is_well() {
        assert_eq!(read_all([b"+QUEUED\r\n".to_vec()].into_iter()), [Value::Okay]);
    }
}
