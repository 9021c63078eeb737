//! Commands as the bytes that go to the server.

use std::time::Duration;

use redis::{Cmd, Pipeline};

/// A key in parts.
pub(crate) type Key<'a> = [&'a [u8]; 5];

/// A key that is one already.
pub(crate) const fn whole(key: &[u8]) -> Key<'_> {
    [key, b"", b"", b"", b""]
}

/// The first and the last command of a transaction, ready for the wire.
pub(crate) const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
pub(crate) const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";
/// Has a node of a cluster run the next command though its slot is only on the way there.
pub(crate) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// Commands that are sent together, ready for the wire, in one buffer.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    bytes: Vec<u8>,
    count: usize,
}

impl Commands {
    pub(crate) fn new() -> Self {
        // Enough to acquire a name of usual length.
        Self { bytes: Vec::with_capacity(320), count: 0 }
    }

    /// The one command that consists of `words`.
    pub(crate) fn of(words: &[&[u8]]) -> Self {
        let mut commands = Self::new();
        commands.add(words);
        commands
    }

    /// One command about one key, which is its first argument.
    pub(crate) fn of_key(key: &Key<'_>, command: &[u8], rest: &[&[u8]]) -> Self {
        let mut commands = Self::new();
        commands.about(key, command, rest);
        commands
    }

    /// Adds the command that consists of `words`.
    pub(crate) fn add(&mut self, words: &[&[u8]]) {
        self.begin(words.len());
        for word in words {
            self.word(word);
        }
    }

    /// Adds a command about one key, which is its first argument.
    pub(crate) fn about(&mut self, key: &Key<'_>, command: &[u8], rest: &[&[u8]]) {
        self.begin(2 + rest.len());
        self.word(command);
        self.joined(key);
        for word in rest {
            self.word(word);
        }
    }

    /// Begins a command of this number of words.
    pub(crate) fn begin(&mut self, words: usize) {
        self.count += 1;
        self.head(b'*', words);
    }

    /// Adds a word to the command that was begun last.
    pub(crate) fn word(&mut self, word: &[u8]) {
        self.joined(&[word]);
    }

    /// Adds a word that comes in parts.
    pub(crate) fn joined(&mut self, parts: &[&[u8]]) {
        self.head(b'$', parts.iter().map(|part| part.len()).sum());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Number of commands, and of answers.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Each command, ready for the wire.
    pub(crate) fn each(&self) -> Vec<&[u8]> {
        let (mut each, mut rest) = (Vec::with_capacity(self.count), &self.bytes[..]);
        while let Some((words, mut after)) = number(rest) {
            for _ in 0..words {
                let Some((_, behind)) = number(after).and_then(|(length, word)| word.split_at_checked(length + 2)) else { break };
                after = behind;
            }
            let (command, next) = rest.split_at(rest.len() - after.len());
            each.push(command);
            rest = next;
        }
        each
    }

    /// Adds this number of commands that are ready for the wire.
    pub(crate) fn ready(&mut self, count: usize, bytes: &[u8]) {
        self.count += count;
        self.bytes.extend_from_slice(bytes);
    }

    fn head(&mut self, kind: u8, number: usize) {
        let number = number as u64;
        let digit = |number: u64| b'0' + (number % 10) as u8;
        // Nearly all numbers have one or two digits.
        if number < 10 {
            self.bytes.extend_from_slice(&[kind, digit(number), b'\r', b'\n']);
        } else if number < 100 {
            self.bytes.extend_from_slice(&[kind, digit(number / 10), digit(number), b'\r', b'\n']);
        } else {
            self.bytes.push(kind);
            self.bytes.extend_from_slice(Digits::of(number).as_bytes());
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// Converts them for the client library. Each command has its own error.
    pub(crate) fn to_pipeline(&self) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(self.count);
        for bytes in self.each() {
            let (mut command, mut rest) = (Cmd::new(), number(bytes).map_or(&b""[..], |(_, rest)| rest));
            while let Some((word, after)) = number(rest).and_then(|(length, rest)| rest.split_at_checked(length)) {
                command.arg(word);
                rest = after.strip_prefix(b"\r\n").unwrap_or(after);
            }
            pipeline.add_command(command);
        }
        pipeline.ignore_errors();
        pipeline
    }
}

impl From<Pipeline> for Commands {
    fn from(pipeline: Pipeline) -> Self {
        Self { bytes: pipeline.get_packed_pipeline(), count: pipeline.len() }
    }
}

/// The number of a head, and what is behind the head.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let number = std::str::from_utf8(bytes.get(1..end)?).ok()?.trim_end().parse().ok()?;
    Some((number, &bytes[end + 1..]))
}

/// A number in decimal digits, on the stack.
pub(crate) struct Digits {
    bytes: [u8; 20],
    start: u8,
}

impl Digits {
    pub(crate) fn of(mut number: u64) -> Self {
        let (mut bytes, mut start) = ([b'0'; 20], 20_u8);
        loop {
            start -= 1;
            bytes[usize::from(start)] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { bytes, start };
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..]
    }
}

/// Whole milliseconds, not less than the span: a server keeps nothing shorter than it was asked to.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_writes_the_same() {
        let mut commands = Commands::new();
        commands.ready(1, MULTI);
        commands.add(&[b"SET", b"a\r\n$3", &[0xff; 42], &[0xff; 300], Digits::of(30_000).as_bytes()]);
        let mut pipeline = redis::pipe();
        commands.ready(1, EXEC);
        pipeline.cmd("MULTI").cmd("SET").arg(b"a\r\n$3").arg(&[0xff_u8; 42]).arg(&[0xff_u8; 300]).arg(30_000).cmd("EXEC");
        assert_eq!((commands.as_bytes(), commands.count()), (&*pipeline.get_packed_pipeline(), 3));
        assert_eq!(commands.to_pipeline().get_packed_pipeline(), commands.as_bytes());
        assert_eq!(Commands::from(pipeline).as_bytes(), commands.as_bytes());
        let each = commands.each();
        assert_eq!((each.len(), each[0], each[2], each.concat()), (3, MULTI, EXEC, commands.as_bytes().to_vec()));
    }

    #[test]
    fn a_span_in_millis_is_no_shorter() {
        let asked = [0, 1, 1_000, 1_001, 2_999_925].map(|micros| millis(Duration::from_micros(micros)));
        assert_eq!((asked, millis(Duration::MAX)), ([0, 1, 1, 2, 3_000], u64::MAX));
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 9, 10, 1 << 53, u64::MAX] {
            assert_eq!(Digits::of(number).as_bytes(), number.to_string().as_bytes());
        }
    }
}
