//! A way to a server that reads the requests on it: it says what was asked, and can lose one of them, or its answer, with its
//! connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};

pub(crate) const CONNECT: i32 = 0;
pub(crate) const CREATE: i32 = 1;
pub(crate) const DELETE: i32 = 2;
pub(crate) const SET_DATA: i32 = 5;
const SYNC: i32 = 9;
const LIST: i32 = 12;
pub(crate) const CREATE_CONTAINER: i32 = 19;

/// A tap. It runs on a thread of its own, so that a test may block its own.
pub(crate) struct Tap {
    addr: SocketAddr,
    shared: Arc<Mutex<State>>,
    _ends: tokio::sync::oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    connections: usize,
    /// The connection and the kind of each request.
    asked: Vec<(usize, i32)>,
    loses: Option<i32>,
    /// The next answer to a create is lost: armed, and then the connection and the number of the request.
    loses_created: bool,
    created: Option<(usize, i32)>,
    /// Lists do not show what was made, until somebody writes or asks for it.
    is_behind: bool,
    /// No session is taken up again, and these connections end.
    forgotten: Option<usize>,
}

impl Tap {
    pub(crate) fn start(server: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (addr, shared) = (listener.local_addr().unwrap(), Arc::<Mutex<State>>::default());
        let (ends, ended) = tokio::sync::oneshot::channel::<()>();
        let theirs = shared.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let serve = async {
                    loop {
                        let (client, _) = listener.accept().await.unwrap();
                        tokio::spawn(pass(client, server, theirs.clone()));
                    }
                };
                tokio::select! { () = serve => {} _ = ended => {} }
            });
        });
        Self { addr, shared, _ends: ends }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Cuts the connection in place of passing the next request of this kind.
    pub(crate) fn lose_next(&self, op: i32) {
        self.shared.lock().unwrap().loses = Some(op);
    }

    /// Cuts the connection in place of passing the next answer to a create. The next server is behind, until it has to catch up.
    pub(crate) fn lose_next_created(&self) {
        self.shared.lock().unwrap().loses_created = true;
    }

    /// Cuts all connections that would go on with a session, as servers do that know less than the client has seen.
    pub(crate) fn forget_sessions(&self) {
        let mut state = self.shared.lock().unwrap();
        state.forgotten = Some(state.connections);
    }

    pub(crate) fn has_lost(&self) -> bool {
        let state = self.shared.lock().unwrap();
        state.loses.is_none() && !state.loses_created && state.created.is_none()
    }

    /// The connection and the kind of each request since the last call.
    pub(crate) fn asked(&self) -> Vec<(usize, i32)> {
        std::mem::take(&mut self.shared.lock().unwrap().asked)
    }
}

/// The next message, with its length in front.
async fn message(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let length = from.read_i32().await.ok()?;
    let mut message = length.to_be_bytes().to_vec();
    message.resize(4 + usize::try_from(length).unwrap(), 0);
    from.read_exact(&mut message[4..]).await.ok()?;
    Some(message)
}

fn int(message: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(message[at..at + 4].try_into().unwrap())
}

async fn pass(client: TcpStream, server: SocketAddr, shared: Arc<Mutex<State>>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    server.set_nodelay(true).unwrap();
    client.set_nodelay(true).unwrap();
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.into_split(), server.into_split());
    let connection = {
        let mut state = shared.lock().unwrap();
        state.connections += 1;
        state.connections
    };
    let theirs = shared.clone();
    let answers = tokio::spawn(async move {
        while let Some(message) = message(&mut from_server).await {
            {
                let mut state = theirs.lock().unwrap();
                if state.created == Some((connection, int(&message, 4))) {
                    (state.created, state.is_behind) = (None, true);
                    break;
                }
            }
            if to_client.write_all(&message).await.is_err() {
                break;
            }
        }
    });
    let mut is_first = true;
    while let Some(mut message) = message(&mut from_client).await {
        let op = if is_first { CONNECT } else { int(&message, 8) };
        is_first = false;
        {
            let mut state = shared.lock().unwrap();
            state.asked.push((connection, op));
            // Its number is behind the version, the zxid and the timeout.
            let has_session = op == CONNECT && message[20..28] != [0; 8];
            if state.forgotten.is_some_and(|last| has_session || connection <= last) {
                break;
            }
            if state.loses == Some(op) {
                state.loses = None;
                break;
            }
            if op == CREATE && std::mem::take(&mut state.loses_created) {
                state.created = Some((connection, int(&message, 4)));
            }
            state.is_behind &= ![CREATE, SYNC].contains(&op);
            if op == LIST && state.is_behind {
                // The last byte of its path, in front of a flag: nothing is there.
                let last = message.len() - 2;
                message[last] = b'?';
            }
        }
        if to_server.write_all(&message).await.is_err() {
            break;
        }
    }
    answers.abort();
}
