//! A bare client, for nodes that the store does not make.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub(crate) const READ: i32 = 1;
pub(crate) const WRITE: i32 = 2;
pub(crate) const MAKE: i32 = 4;
pub(crate) const ALL: i32 = 31;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const SET_ACL: i32 = 7;
const LIST: i32 = 8;
const AUTH: i32 = 100;

pub(crate) struct Raw(TcpStream);

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(i32::try_from(bytes.len()).unwrap().to_be_bytes());
    out.extend(bytes);
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    put(&mut frame, body);
    frame
}

async fn message(stream: &mut TcpStream) -> Vec<u8> {
    let mut body = vec![0; usize::try_from(stream.read_i32().await.unwrap()).unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    body
}

/// Answers to a connection as a server does, and refuses the login that comes next.
pub(crate) async fn refuse_login(mut stream: TcpStream) {
    message(&mut stream).await;
    let mut connected = [&0_i32.to_be_bytes()[..], &4_000_i32.to_be_bytes(), &1_i64.to_be_bytes()].concat();
    put(&mut connected, &[0; 16]);
    connected.push(0);
    stream.write_all(&framed(&connected)).await.unwrap();
    let login = message(&mut stream).await;
    let refused = [&login[..4], &0_i64.to_be_bytes(), &(-115_i32).to_be_bytes()].concat();
    stream.write_all(&framed(&refused)).await.unwrap();
}

impl Raw {
    /// Connects, and logs in as this user.
    pub(crate) async fn connect(server: SocketAddr, login: &str) -> Self {
        let mut raw = Self(TcpStream::connect(server).await.unwrap());
        let mut hello =
            [&0_i32.to_be_bytes()[..], &0_i64.to_be_bytes(), &30_000_i32.to_be_bytes(), &0_i64.to_be_bytes()].concat();
        put(&mut hello, &[0; 16]);
        hello.push(0);
        raw.0.write_all(&framed(&hello)).await.unwrap();
        message(&mut raw.0).await;
        let mut auth = 0_i32.to_be_bytes().to_vec();
        put(&mut auth, b"digest");
        put(&mut auth, login.as_bytes());
        raw.ask(-4, AUTH, &auth).await;
        raw
    }

    async fn ask(&mut self, xid: i32, op: i32, body: &[u8]) -> Vec<u8> {
        let request = [&xid.to_be_bytes()[..], &op.to_be_bytes(), body].concat();
        self.0.write_all(&framed(&request)).await.unwrap();
        let answer = message(&mut self.0).await;
        assert_eq!(answer[12..16], [0; 4], "the code of the answer");
        answer
    }

    /// Makes a node with these rights for everybody, and all for this user.
    pub(crate) async fn create(&mut self, path: &str, rights: i32) {
        self.create_with(path, "", rights).await;
    }

    /// As [`create`](Self::create), with a value.
    pub(crate) async fn create_with(&mut self, path: &str, value: &str, rights: i32) {
        self.make(path, value, rights, 0).await;
    }

    /// As [`create`](Self::create), for as long as the session lasts.
    pub(crate) async fn create_ephemeral(&mut self, path: &str) {
        self.make(path, "", ALL, 1).await;
    }

    async fn make(&mut self, path: &str, value: &str, rights: i32, mode: i32) {
        let mut body = Vec::new();
        put(&mut body, path.as_bytes());
        put(&mut body, value.as_bytes());
        put_acl(&mut body, rights);
        body.extend(mode.to_be_bytes());
        self.ask(1, CREATE, &body).await;
    }

    /// The name of the only node below a path.
    pub(crate) async fn only_child(&mut self, path: &str) -> String {
        let [child] = self.children(path).await.try_into().expect("one node");
        child
    }

    /// The names of all nodes below a path.
    pub(crate) async fn children(&mut self, path: &str) -> Vec<String> {
        let mut body = Vec::new();
        put(&mut body, path.as_bytes());
        body.push(0);
        let listed = self.ask(1, LIST, &body).await;
        let (mut rest, mut names) = (&listed[20..], Vec::new());
        while let Some((length, behind)) = rest.split_first_chunk() {
            let (name, behind) = behind.split_at(usize::try_from(i32::from_be_bytes(*length)).unwrap());
            names.push(String::from_utf8(name.to_vec()).unwrap());
            rest = behind;
        }
        names
    }

    pub(crate) async fn delete(&mut self, path: &str) {
        let mut body = Vec::new();
        put(&mut body, path.as_bytes());
        body.extend((-1_i32).to_be_bytes());
        self.ask(1, DELETE, &body).await;
    }

    pub(crate) async fn set_acl(&mut self, path: &str, rights: i32) {
        let mut body = Vec::new();
        put(&mut body, path.as_bytes());
        put_acl(&mut body, rights);
        body.extend((-1_i32).to_be_bytes());
        self.ask(1, SET_ACL, &body).await;
    }
}

fn put_acl(out: &mut Vec<u8>, rights: i32) {
    out.extend(2_i32.to_be_bytes());
    for (rights, scheme, id) in [(rights, &b"world"[..], &b"anyone"[..]), (ALL, b"auth", b"")] {
        out.extend(rights.to_be_bytes());
        put(out, scheme);
        put(out, id);
    }
}
