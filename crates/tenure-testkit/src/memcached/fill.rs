//! A memory that is filled by others, as an application does that uses the server as a cache.

use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::{ANSWER, MemcachedServer};

/// Items that are written in one round of an eviction.
const ROUND: usize = 50_000;
/// From the smallest record of a lock to one with many waiters. Each is in another part of the memory.
const SIZES: std::ops::Range<usize> = 16..4_096;
/// How many commands are sent before their answers are read.
const AT_ONCE: usize = 200;

/// Values that fill a server.
#[derive(Debug)]
#[must_use = "they stay until they are deleted"]
pub struct Filling(Vec<String>);

impl MemcachedServer {
    /// Writes items about as large as that of `key` until it is evicted.
    #[track_caller]
    pub fn evict(&self, key: &str) {
        let evictions = self.stat("evictions");
        let size = key.len() + self.ask(&format!("get {key}"), None)[1..].join("\n").len();
        for round in 0..50 {
            self.write_round(size, round).expect("memcached answers");
            // Unlike a reader, it does not make the item look needed.
            if self.ask(&format!("me {key}"), Some(1)) == ["EN"] {
                assert!(self.stat("evictions") > evictions);
                return;
            }
            // An item that was read is evicted later: the server looks at the age of those that nobody reads.
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{key} is never evicted");
    }

    fn write_round(&self, size: usize, round: u32) -> io::Result<()> {
        let stream = TcpStream::connect_timeout(&self.addr(), ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut out = BufWriter::new(&stream);
        for number in 0..ROUND {
            // Items of one size have memory of their own, and keys count. So do flags, by four bytes.
            let key = format!("{round}.{number:05}");
            let value = "x".repeat((size + 8 - number % 5 * 4).saturating_sub(key.len()));
            write!(out, "set {key} 0 0 {} noreply\r\n{value}\r\n", value.len())?;
        }
        // Answered behind all of them.
        write!(out, "mn\r\n")?;
        out.flush()?;
        BufReader::new(&stream).read_line(&mut String::new()).map(drop)
    }

    /// Writes values of all sizes until the server takes no more, as one does that was started with `-M`.
    #[track_caller]
    pub fn fill(&self) -> Filling {
        let mut filling = Vec::new();
        let mut size = SIZES.start;
        while size < SIZES.end {
            let value = "x".repeat(size);
            loop {
                let keys: Vec<_> = (0..AT_ONCE).map(|number| format!("full.{size}.{}", filling.len() + number)).collect();
                let commands = keys.iter().map(|key| format!("set {key} 0 0 {size}\r\n{value}\r\n"));
                let answers = self.ask_each(commands).expect("memcached answers");
                let is_full = answers.iter().any(|answer| answer.starts_with("SERVER_ERROR out of memory"));
                filling.extend(keys);
                if is_full {
                    break;
                }
            }
            // Less than from one part of the memory to the next.
            size += (size / 8).max(8);
        }
        assert_eq!(self.stat("evictions"), 0, "the server was started without -M");
        Filling(filling)
    }

    /// Deletes what [`fill`](Self::fill) wrote.
    #[track_caller]
    pub fn empty(&self, filling: &Filling) {
        for keys in filling.0.chunks(AT_ONCE) {
            self.ask_each(keys.iter().map(|key| format!("delete {key}\r\n"))).expect("memcached answers");
        }
    }

    /// Sends commands that are each answered by a line.
    fn ask_each(&self, commands: impl Iterator<Item = String>) -> io::Result<Vec<String>> {
        let commands: Vec<_> = commands.collect();
        let mut stream = TcpStream::connect_timeout(&self.addr(), ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(commands.concat().as_bytes())?;
        BufReader::new(stream).lines().take(commands.len()).collect()
    }
}
