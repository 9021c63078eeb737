//! The servers of a store: each name is at one of them, found by the ring of ketama.
//!
//! It is the ring of libmemcached with `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`, for servers of equal
//! weight, so clients in several languages agree. With `MEMCACHED_BEHAVIOR_KETAMA` alone it has
//! another, of fewer points: those clients look for most names elsewhere. Hosts are taken in lower
//! case. A server that is lost keeps its names: to move them would make
//! a second holder of each.

use std::fmt;

use md5::{Digest, Md5};
use tenure::store::{Credentials, Host};

use crate::connection::Connection;
use crate::options::Options;
use crate::protocol::Key;

/// Digests for each server, and points that each digest makes.
const DIGESTS: u32 = 40;

/// The port that ketama leaves out of a server's name.
const DEFAULT_PORT: u16 = 11_211;

#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) all: Vec<Connection>,
    ring: Ring,
}

impl Servers {
    pub(crate) fn new(options: &Options) -> Self {
        let connection = |(server, login): (&Host, &Credentials)| Connection::new(&server.name, server.port, login.clone());
        let all = options.servers.iter().zip(&options.logins).map(connection).collect();
        Self { all, ring: Ring::new(&options.servers) }
    }

    /// The server of a key, by its number.
    pub(crate) fn of(&self, key: &Key) -> usize {
        if self.all.len() == 1 { 0 } else { self.ring.of(key.as_bytes()) }
    }
}

/// Points on a circle, each of which belongs to a server.
struct Ring(Vec<(u32, usize)>);

impl Ring {
    fn new(servers: &[Host]) -> Self {
        let mut points = Vec::new();
        for (at, Host { name, port }) in servers.iter().enumerate() {
            let name = if *port == DEFAULT_PORT { name.clone() } else { format!("{name}:{port}") };
            for number in 0..DIGESTS {
                let digest: [u8; 16] = Md5::digest(format!("{name}-{number}")).into();
                points.extend(digest.as_chunks::<4>().0.iter().map(|four| (u32::from_le_bytes(*four), at)));
            }
        }
        points.sort_unstable();
        Self(points)
    }

    /// The server of the first point at or behind that of the key.
    fn of(&self, key: &[u8]) -> usize {
        let [a, b, c, d, ..]: [u8; 16] = Md5::digest(key).into();
        let point = u32::from_le_bytes([a, b, c, d]);
        let behind = self.0.partition_point(|(of_server, _)| *of_server < point);
        self.0.get(behind).or(self.0.first()).map_or(0, |(_, server)| *server)
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring of {} points", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: u16) -> Vec<Host> {
        (0..count).map(|at| Host { name: "127.0.0.1".to_owned(), port: 11_311 + at }).collect()
    }

    /// As libmemcached 1.0.16 with `KETAMA_WEIGHTED` has them: one digit for each of `invoice/0`, `invoice/1` and so on.
    #[test]
    fn names_are_where_libmemcached_looks_for_them() {
        for (hosts, expected) in [
            ("127.0.1.1:11211,127.0.1.2:11211,127.0.1.3:11211", "1101202211121212210021110111002111010210"),
            (
                "127.0.0.1:23911,127.0.0.1:23912,127.0.0.1:23913,127.0.1.4:11211,127.0.0.1:23915",
                "3243321303224142111320224033023333044104",
            ),
        ] {
            let ring = Ring::new(&Options::parse(&format!("memcached://{hosts}")).unwrap().servers);
            let found: String = (0..expected.len()).map(|at| ring.of(format!("invoice/{at}").as_bytes()).to_string()).collect();
            assert_eq!(found, expected, "{hosts}");
        }
    }

    #[test]
    fn names_are_spread_and_few_move_with_a_new_server() {
        let (four, five) = (Ring::new(&servers(4)), Ring::new(&servers(5)));
        let keys: Vec<String> = (0..10_000).map(|at| format!("invoice/{at}")).collect();
        let mut counts = [0; 4];
        for key in &keys {
            counts[four.of(key.as_bytes())] += 1;
        }
        assert!(counts.iter().all(|count| (1_500..3_500).contains(count)), "{counts:?}");
        let moved = keys.iter().filter(|key| four.of(key.as_bytes()) != five.of(key.as_bytes()));
        let moved = moved.count();
        assert!((1_000..3_500).contains(&moved), "{moved} of 10000 names moved");
    }
}
