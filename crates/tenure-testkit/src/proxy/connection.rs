//! One client's connection and the one made for it to the server.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::ledger::Ledger;
use super::pump::{Pump, Way};
use super::state::Shared;

/// Carries bytes both ways until the server closes or the connection shall be reset.
pub(super) async fn run(shared: Arc<Shared>, id: u64, mut client: TcpStream, upstream: SocketAddr) {
    let mut server = None;
    tokio::select! {
        biased;
        () = shared.doomed(id) => { let _ = client.set_zero_linger(); }
        result = carry(&shared, id, &mut client, &mut server, upstream) => {
            if result.is_err() {
                let _ = client.set_zero_linger();
            }
        }
    }
    drop(client);
    shared.gone(id);
    if let Some(server) = server {
        finish(server).await;
    }
}

async fn carry(
    shared: &Shared,
    id: u64,
    client: &mut TcpStream,
    server: &mut Option<TcpStream>,
    upstream: SocketAddr,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    shared.reached(|state| !state.black_hole).await;
    let server = server.insert(connect(upstream, shared.patience).await?);
    server.set_nodelay(true)?;
    let ledger = Mutex::new(Ledger::default());
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let requests = Pump::new(shared, id, Way::Requests, &ledger).run(from_client, to_server);
    let replies = Pump::new(shared, id, Way::Replies, &ledger).run(from_server, to_client);
    // A client may close and still have requests on the way; only the server's end ends both.
    let requests = async {
        requests.await;
        pending::<()>().await;
    };
    tokio::select! {
        () = replies => {}
        () = requests => {}
    }
    Ok(())
}

/// Connects to the server, which may need a while until it listens.
async fn connect(upstream: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let deadline = Instant::now() + patience;
    loop {
        match TcpStream::connect(upstream).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            done => return done,
        }
    }
}

/// Lets the server execute all that was forwarded: it would stop at the first reply that nobody takes.
async fn finish(mut server: TcpStream) {
    let _ = server.shutdown().await;
    let _ = tokio::io::copy(&mut server, &mut tokio::io::sink()).await;
}
