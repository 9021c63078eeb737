//! A flash sale: processes buy the same few items, and each lock shows what becomes of the stock.
//!
//! Buyers are killed between any two steps and stopped past their lease. This file starts them and
//! prints the outcome. `buyer.rs` buys, `shop.rs` is the guarded database, `articles.rs` has the locks
//! A1 to A8 as articles write them, and `picture.rs` draws.

#![allow(clippy::print_stdout, reason = "the program reports on standard output")]
#![allow(clippy::future_not_send, reason = "each process has one thread")]

mod articles;
mod buyer;
mod picture;
mod shop;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use clap::Parser;
use jobs::{Children, Error, Faults, Place, Quiet, Table, has_redis_server, longest_lease};
use tenure::store::Features;

use crate::articles::Article;
use crate::buyer::{Buyer, Kind, Locks};
use crate::shop::{Audit, Shop};

/// Sells a few items to many processes, under one lock after another.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// `redis` starts a server, a URL such as `redis://HOST` uses one, `embedded` leaves out what needs
    /// one. Without it, a Redis is started if there is one
    #[arg(long)]
    store: Option<String>,
    /// Buyers, each a process
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    buyers: u16,
    /// Items on sale; each has a lock of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(i64).range(1..))]
    items: i64,
    /// Units of each item
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..))]
    units: i64,
    /// Kills and stops nobody
    #[arg(long)]
    no_crashes: bool,
    /// Sells under this lock alone; may be repeated. The beginning of its name is enough
    #[arg(long, value_name = "LOCK")]
    only: Vec<String>,
    /// File of the picture; without it, beside this program
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Becomes one of the buyers, at the lock of this row
    #[arg(long, hide = true)]
    row: Option<usize>,
    #[arg(long, hide = true)]
    number: Option<usize>,
    #[arg(long, hide = true)]
    shop: Option<PathBuf>,
    /// In front of the names of the locks
    #[arg(long, hide = true, default_value = "")]
    prefix: String,
    #[arg(long, hide = true, default_value_t = 0.0)]
    crashes: f64,
}

/// One lock, and its sale.
#[derive(Debug)]
struct Row {
    name: &'static str,
    kind: Kind,
    /// Scheme at the store; `None` for the embedded file. Of other stores than a Redis it is [`NATIVE`].
    scheme: Option<&'static str>,
    ttl: Duration,
}

const fn row(name: &'static str, kind: Kind, scheme: Option<&'static str>, millis: u64) -> Row {
    Row { name, kind, scheme, ttl: Duration::from_millis(millis) }
}

const fn article(name: &'static str, article: Article) -> Row {
    Row { name, kind: Kind::Article(article), scheme: Some(""), ttl: articles::TTL }
}

/// The store's own scheme. Every store has one.
const NATIVE: &str = "native";

const ROWS: [Row; 19] = [
    row("no lock", Kind::Nothing, None, 300),
    row("tenure, a file", Kind::Mutex, None, 1_000),
    row("tenure, a file, permits", Kind::Permit, None, 1_000),
    article("A1 SETNX, EXPIRE", Article::A1),
    article("A2 both in a script", Article::A2),
    article("A3 A1, takes over", Article::A3),
    article("A4 GETSET", Article::A4),
    article("A5 SET NX EX, DEL", Article::A5),
    article("A6 with a token", Article::A6),
    article("A7 renewed", Article::A7),
    article("A8 WATCH, on a pool", Article::A8),
    row("tenure as A1", Kind::Mutex, Some("setnx-expire"), 1_000),
    row("tenure as A2", Kind::Mutex, Some("setnx-expire-lua"), 1_000),
    // The class keeps a lock for 5 s at least.
    row("tenure as A3", Kind::Mutex, Some("php"), 5_000),
    row("tenure as A4", Kind::Mutex, Some("getset"), 1_000),
    row("tenure as A5, A6, A7", Kind::Mutex, Some("set-nx"), 1_000),
    row("tenure as A8", Kind::Mutex, Some("watch"), 1_000),
    row("tenure, native", Kind::Mutex, Some(NATIVE), 1_000),
    row("tenure, permits", Kind::Permit, Some(NATIVE), 1_000),
];

/// Sales at a time. Buyers sleep while they pay, so several share a processor.
const AT_ONCE: usize = 5;
/// Time without an order after which nobody is killed or stopped any more. Who cannot buy then never can.
const CALM: Duration = Duration::from_secs(1);
/// Longest time between two looks at the sale that counts in full.
const TICK: Duration = Duration::from_millis(25);
/// Lease from which on crashes are rarer.
const LONG_LEASE: Duration = Duration::from_secs(3);
/// Probability of a crash between two steps of a buyer, where leases are short.
const CRASHES: f64 = 0.04;

/// Outcome of a row.
#[derive(Clone, Debug)]
struct Sale {
    row: usize,
    audit: Audit,
    crashes: u32,
    seconds: f64,
}

impl Sale {
    /// Whether it is tenure's, and lost or oversold something that it promises not to.
    fn is_broken(&self, features: &Features) -> bool {
        let Row { kind, scheme, .. } = ROWS[self.row];
        let has_fence = matches!(scheme, None | Some("watch")) || (scheme == Some(NATIVE) && features.fence);
        let is_ours = matches!(kind, Kind::Mutex | Kind::Permit);
        is_ours && (self.audit.dead > 0 || (has_fence && self.audit.twice > 0))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Error> {
    let args = Args::parse();
    match (args.row, &args.shop) {
        (Some(row), Some(shop)) => {
            let Row { kind, ttl, .. } = ROWS[row];
            let store = args.store.as_deref().ok_or("a buyer needs a store")?;
            let locks = Locks::open(kind, store, ttl, args.crashes).await?;
            Buyer::new(kind, locks, args.prefix, Shop::open(shop)?, args.crashes).run().await?;
            Ok(ExitCode::SUCCESS)
        }
        _ => sell_everything(&args).await,
    }
}

async fn sell_everything(args: &Args) -> Result<ExitCode, Error> {
    if let Some(only) = args.only.iter().find(|only| !ROWS.iter().any(|row| row.name.starts_with(only.as_str()))) {
        let names = ROWS.map(|row| row.name).join("; ");
        return Err(format!("--only {only}: no lock has a name that begins like this. There are: {names}").into());
    }
    let missing = if args.store.is_none() { has_redis_server().err() } else { None };
    let store = args.store.as_deref().or(missing.is_none().then_some("redis"));
    let place = Place::new(store)?;
    let features = place.features().await?;
    let is_chosen = |row: &Row| args.only.is_empty() || args.only.iter().any(|only| row.name.starts_with(only.as_str()));
    let (wanted, left_out): (Vec<usize>, Vec<usize>) =
        (0..ROWS.len()).filter(|row| is_chosen(&ROWS[*row])).partition(|row| is_there(&ROWS[*row], &place, &features));
    let stock = args.items * args.units;
    println!(
        "{} buyers, {} items, {stock} units. {}",
        args.buyers,
        args.items,
        if args.no_crashes { "No crashes." } else { "Buyers crash and stall." }
    );
    let began = Instant::now();
    let sales = sell_at_once(args, &place, &features, wanted);
    place.forget(&prefix_of_run(&place))?;
    let sales = sales?;
    report(&sales).print();
    println!();
    println!("twice     orders of units that were sold before: the sale is oversold by that many");
    println!("at once   orders by two who held the same lock at once, each within its own ttl");
    println!("dead      units that nobody could buy any more");
    println!("refused   writes of stale holders, by the fence");
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|row| ROWS[*row].name).collect();
        let why = missing.map_or_else(|| "by this --store".to_owned(), |error| error.to_string());
        println!("not shown ({why}), as they need a Redis without a scheme=: {}", names.join("; "));
    }
    let picture = args.picture.clone().unwrap_or(std::env::current_exe()?.with_extension("svg"));
    std::fs::write(&picture, picture::draw(stock, &sales))?;
    println!("{:.0} s. The picture is {}", began.elapsed().as_secs_f64(), picture.display());
    let broken: Vec<&str> = sales.iter().filter(|sale| sale.is_broken(&features)).map(|sale| ROWS[sale.row].name).collect();
    if broken.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("BROKEN: {}", broken.join("; "));
    Ok(ExitCode::FAILURE)
}

/// Whether the store has the lock of a row.
fn is_there(row: &Row, place: &Place, features: &Features) -> bool {
    match row.scheme {
        None => true,
        Some(NATIVE) => place.url().is_some() && (features.shares || row.kind != Kind::Permit),
        Some("") => place.redis().is_some(),
        Some(_) => place.redis().is_some() && !place.has_scheme(),
    }
}

fn sell_at_once(args: &Args, place: &Place, features: &Features, rows: Vec<usize>) -> Result<Vec<Sale>, Error> {
    // From the end, because tenure's with the longest ttl take the longest.
    let left = Mutex::new(rows);
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let seller =
        || -> Result<Vec<Sale>, Error> { std::iter::from_fn(next).map(|row| sell(args, place, features, row)).collect() };
    let mut sales = std::thread::scope(|scope| -> Result<Vec<Sale>, Error> {
        let sellers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(seller)).collect();
        let mut sales = Vec::new();
        for seller in sellers {
            sales.extend(seller.join().map_err(|_| "a thread failed")??);
        }
        Ok(sales)
    })?;
    sales.sort_unstable_by_key(|sale| sale.row);
    Ok(sales)
}

/// Sells until nothing is left, or until nobody can buy any more.
fn sell(args: &Args, place: &Place, features: &Features, number: usize) -> Result<Sale, Error> {
    let Row { kind, ttl, scheme, .. } = ROWS[number];
    let lease = if scheme == Some(NATIVE) { longest_lease(features, ttl) } else { ttl };
    let path = place.file(&format!("shop-{number}.db"));
    let shop = Shop::create(&path, args.items, args.units)?;
    let faults = Faults {
        kill_every: Duration::from_secs(1),
        stop_every: Duration::from_millis(300),
        stop_for: lease + Duration::from_millis(400),
    };
    // Each costs a lease.
    let rarer = lease.div_duration_f64(LONG_LEASE).max(1.0);
    let (faults, crashes) = if args.no_crashes { (Faults::NONE, 0.0) } else { (faults.rarer(rarer), CRASHES / rarer) };
    let command = [
        ("--row", number.to_string()),
        ("--store", store_of(place, number)),
        ("--prefix", prefix(place, number)),
        ("--shop", path.display().to_string()),
        ("--crashes", crashes.to_string()),
    ];
    let command = command.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect();
    // A name may stay taken for a lease, and for a stop. Where buyers queue, each one that died there may be handed the lock
    // as well, one after the other: no longer than this.
    let leases = if matches!(kind, Kind::Mutex | Kind::Permit) { 3 + u32::from(args.buyers) } else { 3 };
    let longest_quiet = lease * leases + Duration::from_secs(1);
    let mut probe = place.probe()?;
    let began = Instant::now();
    let (mut last_order, mut quiet, mut still) = (began, Quiet::begin(TICK), Duration::ZERO);
    let mut buyers = Children::start(args.buyers.into(), command, faults)?;
    while !buyers.tend()? && still < longest_quiet {
        // If the store stalls, these do as well.
        shop.touch()?;
        probe.touch()?;
        still = quiet.look(shop.orders()?);
        if still.is_zero() {
            last_order = Instant::now();
        }
        buyers.faults = if still < CALM { faults } else { Faults::NONE };
    }
    let (crashes, seconds) = (buyers.killed, last_order.duration_since(began).as_secs_f64());
    drop(buyers);
    Ok(Sale { row: number, audit: shop.audit(args.items * args.units)?, crashes, seconds })
}

/// URL of the locks of a row.
fn store_of(place: &Place, number: usize) -> String {
    match (ROWS[number].scheme, place.url()) {
        (Some("" | NATIVE), Some(url)) => url.to_owned(),
        (Some(scheme), Some(url)) => format!("{url}{}scheme={scheme}", if url.contains('?') { '&' } else { '?' }),
        _ => format!("sqlite:{}", place.file(&format!("locks-{number}.db")).display()),
    }
}

/// In front of the names of a row.
fn prefix(place: &Place, number: usize) -> String {
    format!("{}{number}:", prefix_of_run(place))
}

fn prefix_of_run(place: &Place) -> String {
    place.prefix("flash_sale")
}

fn report(sales: &[Sale]) -> Table {
    let mut table = Table::new(&["lock", "sold", "twice", "at once", "dead", "refused", "crashes", "seconds"]);
    for Sale { row, audit, crashes, seconds } in sales {
        let numbers = [audit.sold, audit.twice, audit.at_once, audit.dead, audit.refused, i64::from(*crashes)];
        let name = ROWS[*row].name.to_owned();
        table.row([name].into_iter().chain(numbers.map(|number| number.to_string())).chain([format!("{seconds:.1}")]));
    }
    table
}
