//! A way to a server that reads the requests on it: it says what was asked, and can lose one of them with its connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const CONNECT: i32 = 0;
pub(crate) const CREATE: i32 = 1;
pub(crate) const DELETE: i32 = 2;
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

    /// Cuts all connections that would go on with a session, as servers do that know less than the client has seen.
    pub(crate) fn forget_sessions(&self) {
        let mut state = self.shared.lock().unwrap();
        state.forgotten = Some(state.connections);
    }

    pub(crate) fn has_lost(&self) -> bool {
        self.shared.lock().unwrap().loses.is_none()
    }

    /// The connection and the kind of each request since the last call.
    pub(crate) fn asked(&self) -> Vec<(usize, i32)> {
        std::mem::take(&mut self.shared.lock().unwrap().asked)
    }
}

async fn pass(client: TcpStream, server: SocketAddr, shared: Arc<Mutex<State>>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    server.set_nodelay(true).unwrap();
    client.set_nodelay(true).unwrap();
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.into_split(), server.into_split());
    let answers = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    });
    let connection = {
        let mut state = shared.lock().unwrap();
        state.connections += 1;
        state.connections
    };
    let mut is_first = true;
    while let Ok(length) = from_client.read_i32().await {
        let mut message = vec![0; usize::try_from(length).unwrap()];
        if from_client.read_exact(&mut message).await.is_err() {
            break;
        }
        let op = if is_first { CONNECT } else { i32::from_be_bytes(message[4..8].try_into().unwrap()) };
        is_first = false;
        {
            let mut state = shared.lock().unwrap();
            state.asked.push((connection, op));
            // Its number is behind the version, the zxid and the timeout.
            let has_session = op == CONNECT && message[16..24] != [0; 8];
            if state.forgotten.is_some_and(|last| has_session || connection <= last) {
                break;
            }
            if state.loses == Some(op) {
                state.loses = None;
                break;
            }
        }
        let frame = [&length.to_be_bytes()[..], &message].concat();
        if to_server.write_all(&frame).await.is_err() {
            break;
        }
    }
    answers.abort();
}
