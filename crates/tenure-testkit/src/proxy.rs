//! A TCP proxy that does to a connection what networks do, at the moment a test chooses.
//!
//! It runs on a thread of its own, so it works beside any runtime, and a control is in force when it returns. It reads
//! the Redis protocol to count commands and to lose exactly one of them. Anything else passes through as it comes, and
//! each piece of it that a client sends counts as a command.
//!
//! A byte stream cannot lose its middle: shifted replies would be a fault no network makes. So from a lost command or
//! reply on, that direction of its connection stays silent (the other one works), until [`Proxy::heal`] or
//! [`Proxy::cut`] resets the connection. `MONITOR` and `CLIENT REPLY` are not understood.
//!
//! Half-open connections are held ones: the end of a stream waits behind its bytes. With [`Proxy::hold_requests`] the
//! server hears nothing more of its clients, nor that they closed or died; with [`Proxy::hold_replies`] the clients hear
//! nothing more of the server; with [`Proxy::black_hole`] neither hears, nor can send more than the kernel buffers.

mod connection;
mod ledger;
mod pump;
mod state;

use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use state::{Fault, LossMode, Pushes, Shared, State};

/// Whether to listen, and where to say that it is done.
type Listening = (bool, mpsc::Sender<()>);

/// A loopback port that is free.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A fault proxy in front of one server; dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    control: Option<UnboundedSender<Listening>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free loopback port and forwards to `upstream`, which need not run yet.
    pub fn start(upstream: SocketAddr) -> Self {
        Self::launch(ANYWHERE, upstream, Shared::default())
    }

    /// As [`start`](Self::start) for a protocol that is not Redis: nothing is parsed or lost singly.
    pub fn start_opaque(upstream: SocketAddr) -> Self {
        Self::start_opaque_at(ANYWHERE, upstream)
    }

    /// As [`start_opaque`](Self::start_opaque), at an address of its own: that where a host name leads next.
    pub fn start_opaque_at(address: SocketAddr, upstream: SocketAddr) -> Self {
        Self::launch(address, upstream, Shared::opaque())
    }

    /// As [`start_opaque`](Self::start_opaque), between servers that start together: what connects before `upstream` listens waits
    /// for it, for five seconds. Without that it would see its connection end, and take the other for gone.
    pub fn start_link(upstream: SocketAddr) -> Self {
        Self::launch(ANYWHERE, upstream, Shared::link(Duration::from_secs(5)))
    }

    fn launch(at: SocketAddr, upstream: SocketAddr, shared: Shared) -> Self {
        let shared = Arc::new(shared);
        let (control, orders) = unbounded_channel();
        let (ready, address) = mpsc::channel();
        let theirs = Arc::clone(&shared);
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime can be made");
            runtime.block_on(serve(at, upstream, &theirs, orders, &ready));
        };
        let thread = std::thread::Builder::new().name("fault-proxy".to_owned()).spawn(run);
        let thread = Some(thread.expect("a thread can be started"));
        let addr = address.recv().expect("the proxy can listen on a loopback port");
        Self { addr, shared, control: Some(control), thread }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Forwards nothing either way and reads nothing; new connections are accepted and treated alike.
    pub fn black_hole(&self) {
        self.shared.change(|state| state.black_hole = true);
    }

    /// Ends every fault. What was held or delayed is forwarded in order, also for clients that are gone by now;
    /// connections that lost a command or a reply are reset, with what was held for them.
    pub fn heal(&self) {
        self.listen(true);
        self.shared.change(State::heal);
        self.shared.wait_for_resets();
    }

    /// Resets (RST) every connection, and forgets what was held for it; what was forwarded before is executed.
    pub fn cut(&self) {
        self.shared.change(State::cut);
        self.shared.wait_for_resets();
    }

    /// As [`cut`](Self::cut), but not the connections of [`hold_present_requests`](Self::hold_present_requests).
    pub fn cut_others(&self) {
        self.shared.change(|state| state.doomed = &state.live - &state.held);
        self.shared.wait_for_resets();
    }

    /// Refuses new connections; the present ones go on.
    pub fn refuse(&self) {
        self.listen(false);
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.listen(true);
    }

    /// Forwards new connections to another server, as a name does that leads there from now on. The present ones go on.
    pub fn lead_to(&self, upstream: SocketAddr) {
        self.shared.change(|state| state.leads_to = Some(upstream));
    }

    /// Delays everything read from now on by `delay`, each way.
    pub fn delay(&self, delay: Duration) {
        self.shared.change(|state| state.delay = delay);
    }

    /// Lets the `k`-th command from now (1 is the next, over all connections, handshakes included) be executed and loses
    /// its reply and all later ones on that connection.
    pub fn swallow_reply(&self, k: u64) {
        self.shared.change(|state| state.plan(k, Fault::Reply(LossMode::Silence)));
    }

    /// Loses the `k`-th command from now (1 is the next, over all connections, handshakes included) and all later ones
    /// on that connection.
    pub fn drop_request(&self, k: u64) {
        self.shared.change(|state| state.plan(k, Fault::Request(LossMode::Silence)));
    }

    /// Resets (RST) the connection on which the `k`-th command from now arrives, in place of forwarding it. What that
    /// connection sent before it is executed.
    pub fn cut_at(&self, k: u64) {
        self.shared.change(|state| state.plan(k, Fault::Request(LossMode::Reset)));
    }

    /// Lets the `k`-th command from now be executed and resets (RST) its connection in place of the reply. Replies before
    /// it are passed on.
    pub fn cut_after(&self, k: u64) {
        self.shared.change(|state| state.plan(k, Fault::Reply(LossMode::Reset)));
    }

    /// Holds the `k`-th command from now for `time`, or until [`heal`](Self::heal); later ones on its connection queue
    /// behind it, those on others overtake.
    pub fn hold_request(&self, k: u64, time: Duration) {
        self.shared.change(|state| state.plan(k, Fault::Hold(time)));
    }

    /// Reads requests but keeps them until [`heal`](Self::heal) or [`release_requests`](Self::release_requests), which
    /// deliver them even if their client has closed its connection: the late execution. Replies still flow.
    pub fn hold_requests(&self) {
        self.shared.change(|state| state.hold_requests = true);
    }

    /// As [`hold_requests`](Self::hold_requests), for the connections there are now. Later ones flow, and overtake.
    pub fn hold_present_requests(&self) {
        self.shared.change(|state| state.held.clone_from(&state.live));
    }

    /// Keeps replies and pushes until [`heal`](Self::heal) or [`release_replies`](Self::release_replies). Requests still
    /// flow.
    pub fn hold_replies(&self) {
        self.shared.change(|state| state.hold_replies = true);
    }

    /// Delivers the requests that are held, on all connections, and lets new ones flow. Other faults stay, held replies
    /// among them.
    pub fn release_requests(&self) {
        self.shared.change(|state| {
            state.hold_requests = false;
            state.held.clear();
        });
    }

    /// Delivers the replies that are held and lets new ones flow. Other faults stay, held requests among them.
    pub fn release_replies(&self) {
        self.shared.change(|state| state.hold_replies = false);
    }

    /// Keeps pushes until [`heal`](Self::heal) or [`release_pushes`](Self::release_pushes), and
    /// replies overtake them. One connection cannot do that to its bytes. A second one for the
    /// pushes can, and so can a client that takes them in by two tasks.
    pub fn hold_pushes(&self) {
        self.shared.change(|state| state.pushes = Pushes::Wait);
    }

    /// Loses pushes from now on, and nothing else, as a server does that has nobody to push to.
    pub fn lose_pushes(&self) {
        self.shared.change(|state| state.pushes = Pushes::Vanish);
    }

    /// Delivers the pushes that are held, behind the replies that have overtaken them, and lets new ones flow.
    pub fn release_pushes(&self) {
        self.shared.change(|state| state.pushes = Pushes::Pass);
    }

    /// Writes at most `bytes` at once, both ways, so that frames arrive in pieces.
    pub fn slice(&self, bytes: usize) {
        assert!(bytes > 0, "a slice has at least one byte");
        self.shared.change(|state| state.slice = Some(bytes));
    }

    /// Lets at most so many bytes pass in a second, for each connection and each way on its own.
    pub fn throttle(&self, bytes_per_second: u32) {
        assert!(bytes_per_second > 0, "nothing at all passes with black_hole");
        self.shared.change(|state| state.throttle = Some(bytes_per_second));
    }

    /// Resets (RST) all connections there are, each time `every` has passed, and forgets what was held for them.
    pub fn churn(&self, every: Duration) {
        self.shared.change(|state| state.churn = Some(every));
    }

    /// How many commands clients have sent, lost and held ones included.
    pub fn commands(&self) -> u64 {
        self.shared.lock().commands()
    }

    /// The name of each of those commands, upper case, in order of arrival. A piece of another protocol has none.
    pub fn log(&self) -> Vec<String> {
        self.shared.lock().log.clone()
    }

    /// How many answers came from the server, held and lost ones included: one for each command that was executed, so a
    /// transaction counts with all its parts, and one for each channel of a subscription. Pushes do not count.
    pub fn replies(&self) -> u64 {
        self.shared.lock().replies
    }

    /// How many pushes came from the server, held and lost ones included.
    pub fn pushes(&self) -> u64 {
        self.shared.lock().pushed
    }

    /// How many client connections are open.
    pub fn connections(&self) -> usize {
        self.shared.lock().live.len()
    }

    /// How many client connections there have been since the start.
    pub fn accepted(&self) -> u64 {
        self.shared.lock().admitted
    }

    /// Waits until `n` commands were seen since the start; panics after `timeout`. Blocks the calling thread.
    #[track_caller]
    pub fn wait_for_commands(&self, n: u64, timeout: Duration) {
        let came = self.shared.wait_for(timeout, |state| state.commands() >= n);
        let log = self.log();
        assert!(came, "the proxy saw {} of {n} commands within {timeout:?}: {log:?}", log.len());
    }

    /// Waits until `n` answers came since the start, so the server has executed what they answer; panics after `timeout`.
    /// Blocks the calling thread.
    #[track_caller]
    pub fn wait_for_replies(&self, n: u64, timeout: Duration) {
        let came = self.shared.wait_for(timeout, |state| state.replies >= n);
        assert!(came, "the proxy saw {} of {n} replies within {timeout:?}, to {:?}", self.replies(), self.log());
    }

    /// Completes when `n` commands were seen since the start; for a task, on any runtime.
    pub async fn reached(&self, n: u64) {
        self.shared.reached(|state| state.commands() >= n).await;
    }

    /// Completes when `n` answers came since the start; for a task, on any runtime.
    pub async fn answered(&self, n: u64) {
        self.shared.reached(|state| state.replies >= n).await;
    }

    fn listen(&self, on: bool) {
        let (done, wait) = mpsc::channel();
        let control = self.control.as_ref().expect("present until dropped");
        control.send((on, done)).expect("the proxy's thread runs");
        wait.recv().expect("the proxy's thread runs");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.control.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Accepts connections until `orders` ends.
async fn serve(
    at: SocketAddr,
    upstream: SocketAddr,
    shared: &Arc<Shared>,
    mut orders: UnboundedReceiver<Listening>,
    ready: &mpsc::Sender<SocketAddr>,
) {
    let (_reserved, address) = reserve(at).expect("a loopback port is free");
    let open = || listen(address).expect("the port is reserved");
    let mut listener = Some(open());
    let _ = ready.send(address);
    let theirs = Arc::clone(shared);
    tokio::spawn(async move { theirs.churn().await });
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => {
                let Some((on, done)) = order else { return };
                if on {
                    listener = listener.or_else(|| Some(open()));
                } else if let Some(present) = listener.take() {
                    close(&present);
                }
                let _ = done.send(());
            }
            accepted = next(listener.as_ref()) => {
                let Ok(client) = accepted else { continue };
                let id = shared.admit();
                let upstream = shared.change(|state| state.leads_to).unwrap_or(upstream);
                tokio::spawn(connection::run(Arc::clone(shared), id, client, upstream));
            }
        }
    }
}

/// A bound socket that does not listen: it keeps the port ours, and the kernel refuses connections, while nobody does.
fn reserve(address: SocketAddr) -> io::Result<(TcpSocket, SocketAddr)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(address)?;
    // Only now: were the port chosen with it, the kernel might choose one that another proxy has.
    socket.set_reuseport(true)?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

/// Ends listening at once: a process that is just being started elsewhere may hold a copy of the descriptor, and closing
/// ours would leave its copy listening.
fn close(listener: &TcpListener) {
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
}

async fn next(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(client, _)| client),
        None => pending().await,
    }
}
