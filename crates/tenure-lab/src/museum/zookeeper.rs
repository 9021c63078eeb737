//! A client of ZooKeeper, as far as the stories need one: a session, and what keeps it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::link::{Link, PATIENCE};
use super::server::LOCK;

/// How often a session is kept alive.
const PING: Duration = Duration::from_millis(50);

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const CHILDREN: i32 = 8;
const PINGED: i32 = 11;
const XID_PING: i32 = -2;
const PERSISTENT: i32 = 0;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const NODE_EXISTS: i32 = -110;
const NODE_GONE: i32 = -101;

pub(super) struct Session {
    stream: TcpStream,
    /// The same, for one request at a time.
    writer: Arc<Mutex<TcpStream>>,
    asked: i32,
}

impl Session {
    /// Opens a session that ends when nothing is heard of it for `timeout` milliseconds.
    pub(super) fn open(to: SocketAddr, timeout: i32) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let writer = Arc::new(Mutex::new(stream.try_clone()?));
        let mut session = Self { stream, writer, asked: 0 };
        // Protocol version, last transaction seen, timeout, no session and its password, no server
        // that only reads.
        write(&session.writer, &[&[0; 12][..], &timeout.to_be_bytes(), &[0; 8], &bytes(&[0; 16]), &[0]].concat())?;
        let answer = session.frame()?;
        assert_eq!(answer[4..8], timeout.to_be_bytes(), "ZooKeeper takes the timeout of the session");
        session.keep();
        session.ask(CREATE, &create(&format!("/{LOCK}"), PERSISTENT))?;
        let (error, _) = session.answer()?;
        assert!([0, NODE_EXISTS].contains(&error), "/{LOCK} was not made: {error}");
        Ok(session)
    }

    /// Keeps the session until this is dropped. A process that is stopped keeps nothing.
    fn keep(&self) {
        let writer = Arc::downgrade(&self.writer);
        let ping = [XID_PING.to_be_bytes(), PINGED.to_be_bytes()].concat();
        std::thread::spawn(move || {
            while writer.upgrade().is_some_and(|writer| write(&writer, &ping).is_ok()) {
                std::thread::sleep(PING);
            }
        });
    }

    fn ask(&mut self, what: i32, body: &[u8]) -> io::Result<()> {
        self.asked = what;
        write(&self.writer, &[&1_i32.to_be_bytes(), &what.to_be_bytes(), body].concat())
    }

    /// The next answer that is none to a ping: its error, and the rest.
    fn answer(&mut self) -> io::Result<(i32, Vec<u8>)> {
        loop {
            let mut frame = self.frame()?;
            let rest = frame.split_off(16);
            if int(&frame) != XID_PING {
                return Ok((int(&frame[12..]), rest));
            }
        }
    }

    fn frame(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame)?;
        Ok(frame)
    }
}

impl Link for Session {
    /// A story has the words of ZooKeeper's command line, with short numbers.
    fn send(&mut self, commands: &[Vec<String>]) -> io::Result<()> {
        let words: Vec<&str> = commands.iter().flatten().map(String::as_str).collect();
        match words[..] {
            ["create", "-s", "-e", path] => self.ask(CREATE, &create(path, EPHEMERAL_SEQUENTIAL)),
            ["ls", path] => self.ask(CHILDREN, &[&bytes(path.as_bytes())[..], &[0]].concat()),
            ["delete", path] => {
                let (parent, number) = path.rsplit_once('n').expect("a node with its number");
                let path = format!("{parent}n{number:0>10}");
                // Of any version.
                self.ask(DELETE, &[&bytes(path.as_bytes())[..], &(-1_i32).to_be_bytes()].concat())
            }
            _ => panic!("{words:?} is no command of ZooKeeper"),
        }
    }

    fn receive(&mut self) -> io::Result<String> {
        let (error, mut rest) = self.answer()?;
        Ok(match (self.asked, error) {
            (CREATE, 0) => node(&mut rest),
            (DELETE, 0) => "OK".to_owned(),
            (DELETE, NODE_GONE) => "no node".to_owned(),
            (CHILDREN, 0) => {
                let count = int(&rest.drain(..4).collect::<Vec<_>>());
                let mut nodes: Vec<_> = (0..count).map(|_| node(&mut rest)).collect();
                nodes.sort_unstable();
                nodes.join(" ")
            }
            (asked, error) => panic!("ZooKeeper answered {asked} with error {error}"),
        })
    }
}

fn write(writer: &Mutex<TcpStream>, frame: &[u8]) -> io::Result<()> {
    writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes(frame))
}

/// A node without data, which everybody may use.
fn create(path: &str, flags: i32) -> Vec<u8> {
    let [one, all] = [1_i32, 31].map(i32::to_be_bytes);
    let everybody = [bytes(b"world"), bytes(b"anyone")].concat();
    [bytes(path.as_bytes()), bytes(b""), one.to_vec(), all.to_vec(), everybody, flags.to_be_bytes().to_vec()].concat()
}

/// Bytes behind their length.
fn bytes(bytes: &[u8]) -> Vec<u8> {
    let length = i32::try_from(bytes.len()).expect("requests are short");
    [&length.to_be_bytes(), bytes].concat()
}

fn int(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

/// Takes the path of a node off, for its number.
fn node(rest: &mut Vec<u8>) -> String {
    let length = usize::try_from(int(rest)).expect("a length");
    let path: Vec<u8> = rest.drain(..4 + length).skip(4).collect();
    let path = String::from_utf8(path).expect("paths are text");
    let number = path.rsplit('n').next().and_then(|number| number.parse::<u32>().ok());
    format!("n{}", number.unwrap_or_else(|| panic!("{path:?} is no node of ours")))
}
