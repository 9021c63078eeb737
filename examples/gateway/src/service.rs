//! The service: a gift for each user, which must not be handed out twice.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};
use axum::routing::{get, post};
use axum::{Extension, Router};
use tenure::{Fence, Locker};
use tenure_tower::{Key, LockLayer, OnOutage, Stats};
use tokio::net::TcpListener;

use crate::Error;

pub(crate) const USER: HeaderName = HeaderName::from_static("x-user-id");
/// First words of the line that says where the service listens.
pub(crate) const LISTENING: &str = "listening on ";

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Store of the locks, such as `redis://HOST` or `sqlite:PATH`. A file of its own without it
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Serves without the layer
    #[arg(long)]
    no_lock: bool,
    /// Serves without a lock while the store is gone, instead of refusing
    #[arg(long)]
    fail_open: bool,
    /// Refuses a repeat within so many milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS")]
    cool_down: u64,
    /// Threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
}

/// Gifts by user. Reading and writing are steps of their own, as in a database.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<HashMap<String, u32>>>);

impl Log {
    fn gifts(&self, user: &str) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(user).copied().unwrap_or(0)
    }

    fn note_gift(&self, user: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(user.to_owned()).or_default() += 1;
    }
}

/// Checks the log, hands the gift out, writes the log.
async fn gift(State(log): State<Log>, fence: Option<Extension<Fence>>, headers: HeaderMap) -> String {
    let user = headers.get(USER).and_then(|user| user.to_str().ok()).unwrap_or_default();
    if log.gifts(user) > 0 {
        return "you have it\n".to_owned();
    }
    // A call to another service. A database would compare the fence.
    tokio::time::sleep(Duration::from_millis(3)).await;
    log.note_gift(user);
    let fence = fence.map_or_else(|| "none".to_owned(), |Extension(fence)| fence.to_string());
    format!("a gift, with fence {fence}\n")
}

/// Number of users who got a gift more than once.
async fn doubled(State(log): State<Log>) -> String {
    let log = log.0.lock().unwrap_or_else(PoisonError::into_inner);
    log.values().filter(|gifts| **gifts > 1).count().to_string()
}

async fn ping() -> &'static str {
    "pong"
}

async fn connect(store: Option<&str>) -> Result<Locker, Error> {
    match store {
        Some(url) => Ok(tenure_stores::connect(url).await?),
        None => Ok(tenure_sql::connect(own_file()?).await?),
    }
}

/// A file of this user's. In a directory of all users another one could be there first.
fn own_file() -> Result<PathBuf, Error> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let dir = state.or_else(home).ok_or("neither XDG_STATE_HOME nor HOME is set; give --store")?.join("tenure");
    std::fs::create_dir_all(&dir)?;
    Ok(dir.join("gateway.db"))
}

fn locked(locks: Locker, args: &Args) -> Result<LockLayer, tenure::Error> {
    let on_outage = if args.fail_open { OnOutage::FailOpen } else { OnOutage::FailClosed };
    LockLayer::builder(locks, "gateway", Key::header(USER), on_outage).cool_down(Duration::from_millis(args.cool_down)).build()
}

/// The counters, as Prometheus and its kin read them.
fn metrics(stats: Option<&Stats>) -> String {
    let Some(counts) = stats.map(Stats::counts) else { return String::new() };
    let all = [
        ("granted", counts.granted),
        ("refused", counts.refused),
        ("waited", counts.waited),
        ("joined", counts.joined),
        ("unanswered", counts.unanswered),
        ("failed_open", counts.failed_open),
        ("failed_closed", counts.failed_closed),
        ("overloaded", counts.overloaded),
        ("lost", counts.lost),
        ("invalid", counts.invalid),
        ("keyless", counts.keyless),
    ];
    let mut text = String::new();
    for (name, count) in all {
        let _ = writeln!(text, "# TYPE gateway_{name}_total counter\ngateway_{name}_total {count}");
    }
    text
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(args.threads.into()).enable_all().build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<(), Error> {
    let mut app = Router::new().route("/gift", post(gift)).route("/ping", post(ping));
    let mut stats = None;
    if !args.no_lock {
        let layer = locked(connect(args.store.as_deref()).await?, args)?;
        stats = Some(layer.stats());
        app = app.layer(layer);
    }
    let app = app
        .route("/doubled", get(doubled))
        .route("/metrics", get(move || async move { metrics(stats.as_ref()) }))
        .with_state(Log::default());
    let listener = TcpListener::bind(args.listen).await?;
    println!("{LISTENING}{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
