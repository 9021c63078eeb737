//! A client of ZooKeeper, as far as the schemes need one: a session, and what keeps it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::PATIENCE;
use crate::broken::command::{LOCK, OK, Value};
use crate::broken::schemes::TTL;
use crate::broken::wire::Scale;
use crate::broken::zookeeper::{NO_NODE, ZooKeeper};

/// How often a session is kept alive.
const PING: Duration = Duration::from_millis(50);

const OP_CREATE: i32 = 1;
const OP_DELETE: i32 = 2;
const OP_CHILDREN: i32 = 8;
const OP_PING: i32 = 11;
/// As `create`, and answers with the numbers of the node.
const OP_CREATE2: i32 = 15;
const XID: i32 = 1;
const XID_PING: i32 = -2;
const PERSISTENT: i32 = 0;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const NODE_EXISTS: i32 = -110;
const NODE_GONE: i32 = -101;

pub(crate) struct Link {
    stream: TcpStream,
    /// The same, for one request at a time.
    writer: Arc<Mutex<TcpStream>>,
    /// The transaction that made this client's node.
    czxid: u64,
}

impl Link {
    /// Opens a session that ends when nothing is heard of it for a lease.
    pub(super) fn open(address: SocketAddr, scale: &Scale) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let writer = Arc::new(Mutex::new(stream.try_clone()?));
        let mut link = Self { stream, writer, czxid: 0 };
        let timeout = i32::try_from(scale.lease(TTL)).expect("a lease is short");
        // Protocol version, last transaction seen, timeout, session, password; and no server that
        // only reads.
        let hello = Out::default().int(0).long(0).int(timeout).long(0).bytes(&[0; 16]).flag(false);
        link.write(&hello.0)?;
        let mut answer = In(link.frame()?);
        answer.int();
        assert_eq!(answer.int(), timeout, "ZooKeeper takes the timeout of the session");
        ping_from_now_on(Arc::downgrade(&link.writer));
        link.request(OP_CREATE, create(&format!("/{LOCK}"), PERSISTENT))?;
        let (error, _) = link.answer()?;
        assert!([0, NODE_EXISTS].contains(&error), "/{LOCK} was not made: {error}");
        Ok(link)
    }

    pub(super) fn czxid(&self) -> u64 {
        self.czxid
    }

    pub(super) fn send(&mut self, call: ZooKeeper) -> io::Result<()> {
        match call {
            ZooKeeper::Create => self.request(OP_CREATE2, create(&format!("/{LOCK}/n"), EPHEMERAL_SEQUENTIAL)),
            ZooKeeper::Children => self.request(OP_CHILDREN, Out::default().text(&format!("/{LOCK}")).flag(false)),
            // Of any version.
            ZooKeeper::Delete(node) => self.request(OP_DELETE, Out::default().text(&path(node)).int(-1)),
        }
    }

    pub(super) fn receive(&mut self, call: ZooKeeper) -> io::Result<Value> {
        let (error, mut answer) = self.answer()?;
        Ok(match (call, error) {
            (ZooKeeper::Create, 0) => {
                let node = bit(&answer.text());
                self.czxid = answer.long().unsigned_abs();
                Value::Nodes(node)
            }
            (ZooKeeper::Children, 0) => Value::Nodes((0..answer.int()).map(|_| bit(&answer.text())).sum()),
            (ZooKeeper::Delete(_), 0) => OK,
            (ZooKeeper::Delete(_), NODE_GONE) => NO_NODE,
            (call, error) => panic!("{call}: ZooKeeper answered with error {error}"),
        })
    }

    fn request(&self, op: i32, body: Out) -> io::Result<()> {
        self.write(&[Out::default().int(XID).int(op).0, body.0].concat())
    }

    fn write(&self, frame: &[u8]) -> io::Result<()> {
        write(&self.writer, frame)
    }

    /// The next answer that is none to a ping: its error, and the rest.
    fn answer(&mut self) -> io::Result<(i32, In)> {
        loop {
            let mut frame = In(self.frame()?);
            let (xid, _zxid, error) = (frame.int(), frame.long(), frame.int());
            if xid != XID_PING {
                return Ok((error, frame));
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

/// Keeps a session until its link is dropped or the connection ends. A process that is stopped
/// keeps nothing.
fn ping_from_now_on(writer: Weak<Mutex<TcpStream>>) {
    let ping = Out::default().int(XID_PING).int(OP_PING).0;
    std::thread::spawn(move || {
        while writer.upgrade().is_some_and(|writer| write(&writer, &ping).is_ok()) {
            std::thread::sleep(PING);
        }
    });
}

fn write(writer: &Mutex<TcpStream>, frame: &[u8]) -> io::Result<()> {
    writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(&Out::default().bytes(frame).0)
}

/// A node without data, which everybody may use.
fn create(path: &str, flags: i32) -> Out {
    const ALL: i32 = 31;
    Out::default().text(path).bytes(b"").int(1).int(ALL).text("world").text("anyone").int(flags)
}

/// The number that ZooKeeper gave to a node, as a bit.
fn bit(node: &str) -> u8 {
    let number = node.rsplit('n').next().and_then(|number| number.parse::<u32>().ok());
    number.and_then(|number| 1_u8.checked_shl(number)).unwrap_or_else(|| panic!("{node:?} is no node of ours"))
}

fn path(node: Value) -> String {
    let Value::Nodes(bit) = node else { panic!("{node} is no node") };
    format!("/{LOCK}/n{:010}", bit.trailing_zeros())
}

/// A request, or a part of one.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn int(self, int: i32) -> Self {
        self.raw(&int.to_be_bytes())
    }

    fn long(self, long: i64) -> Self {
        self.raw(&long.to_be_bytes())
    }

    fn flag(self, flag: bool) -> Self {
        self.raw(&[u8::from(flag)])
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        self.int(i32::try_from(bytes.len()).expect("requests are short")).raw(bytes)
    }

    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }
}

/// The rest of an answer.
struct In(Vec<u8>);

impl In {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let taken: Vec<u8> = self.0.drain(..N).collect();
        taken.try_into().expect("as many as were taken")
    }

    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let length = usize::try_from(self.int()).unwrap_or(0);
        String::from_utf8(self.0.drain(..length).collect()).expect("paths are text")
    }
}
