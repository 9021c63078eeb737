//! Pairs of requests with the same key, at random distances, to two processes of a service.
//!
//! The handlers read a number, think, and write the number plus one, without any protection but the
//! layer. A number that is too small shows that two handlers ran at once.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::Fence;
use tenure_testkit::lines::{hear, say};
use tenure_testkit::{RedisServer, Spawned};
use tenure_tower::{BoxError, Duplicate, Key, LockLayer, OnOutage, RefuseWith};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::support::*;

const ROLE: &str = "TENURE_TOWER_TEST_SERVICE";
/// Ttl of tests in which leases are to end by themselves.
const TTL: Duration = Duration::from_millis(1_500);
/// Ttl of tests in which none is to end: calls to the store may take long.
const CALM: Duration = Duration::from_secs(30);

/// Longer than the distance of any pair.
const COOL_DOWN: Duration = Duration::from_secs(3);

/// By how much a guard ends before its lease. Processes that stand still for longer may let two handlers in.
const MARGIN: Duration = Duration::from_millis(150);

/// Numbers in a file, three for each key: visits, the handler that came last, and overlaps. Beside it a list of when handlers
/// met, and from when to when a process stood still, in milliseconds since 1970.
#[derive(Clone, Debug)]
struct Numbers {
    cells: Arc<File>,
    times: Arc<File>,
    path_of_times: PathBuf,
}

impl Numbers {
    fn open(path: &Path, keys: u64) -> Self {
        let cells = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).unwrap();
        cells.set_len(keys * 3 * 8).unwrap();
        let path_of_times = path.with_extension("times");
        let times = OpenOptions::new().create(true).append(true).open(&path_of_times).unwrap();
        Self { cells: Arc::new(cells), times: Arc::new(times), path_of_times }
    }

    fn read(&self, key: u64) -> u64 {
        self.cell(key * 3)
    }

    fn write(&self, key: u64, number: u64) {
        self.set(key * 3, number);
    }

    /// Leaves the number of a handler, which the next one overwrites.
    fn enter(&self, key: u64, me: u64) {
        self.set(key * 3 + 1, me);
    }

    /// Notes it if another handler came meanwhile.
    fn check(&self, key: u64, me: u64) {
        if self.cell(key * 3 + 1) != me {
            self.set(key * 3 + 2, self.overlaps(key) + 1);
            self.list(&format!("met {key} {}\n", millis()));
        }
    }

    fn overlaps(&self, key: u64) -> u64 {
        self.cell(key * 3 + 2)
    }

    fn note_pause(&self, pause: Duration) {
        if pause >= MARGIN {
            let now = millis();
            self.list(&format!("paused {} {now}\n", now - u64::try_from(pause.as_millis()).unwrap()));
        }
    }

    fn list(&self, line: &str) {
        (&*self.times).write_all(line.as_bytes()).unwrap();
    }

    /// The longest pause of a process in which handlers of the key met. None if they met without one.
    fn pause_behind(&self, key: u64) -> Option<Duration> {
        let list = std::fs::read_to_string(&self.path_of_times).unwrap();
        let pairs = |word: &str| -> Vec<(u64, u64)> {
            let lines = list.lines().filter_map(|line| line.strip_prefix(word)?.split_once(' '));
            lines.map(|(one, two)| (one.parse().unwrap(), two.parse().unwrap())).collect()
        };
        let pauses = pairs("paused ");
        // Who goes on is found out a moment later.
        let behind =
            |at: u64| pauses.iter().filter(|(from, to)| (*from..=to + 50).contains(&at)).map(|(from, to)| to - from).max();
        let met = pairs("met ").into_iter().filter(|(of, _)| *of == key).map(|(_, at)| behind(at));
        met.collect::<Option<Vec<_>>>()?.into_iter().max().map(Duration::from_millis)
    }

    /// That no two handlers of the key ran at once: of those that did, one overwrites the number of the other.
    fn were_alone(&self, key: u64) {
        if self.overlaps(key) > 0 {
            let pause = self.pause_behind(key).unwrap_or_else(|| panic!("two handlers ran at once for {key}"));
            panic!("two handlers ran at once for {key}, where a process went on only after {pause:?}");
        }
    }

    fn cell(&self, at: u64) -> u64 {
        let mut number = [0; 8];
        self.cells.read_exact_at(&mut number, at * 8).unwrap();
        u64::from_le_bytes(number)
    }

    fn set(&self, at: u64, number: u64) {
        self.cells.write_all_at(&number.to_le_bytes(), at * 8).unwrap();
    }
}

fn millis() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// A handler that is in. It was alone, however it ends: by an answer, a panic, or because it is
/// cancelled.
struct Inside {
    numbers: Numbers,
    key: u64,
    me: u64,
    /// When it is to be out again.
    until: Instant,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.numbers.check(self.key, self.me);
        self.numbers.note_pause(Instant::now().saturating_duration_since(self.until));
    }
}

/// Reads, thinks, and writes, or fails as the request wants it. Answers with a number of its own, and
/// its fence. Nobody reads the body.
async fn visit(
    State(numbers): State<Numbers>,
    fence: Option<Extension<Fence>>,
    headers: HeaderMap,
) -> Result<([(HeaderName, String); 1], String), StatusCode> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let number = |name| headers.get(name).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let (key, think) = (number("x-key").unwrap(), number("x-think").unwrap_or(0));
    let think = Duration::from_micros(think);
    let until = Instant::now() + think;
    let (before, me) = (numbers.read(key), fastrand::u64(1..));
    numbers.enter(key, me);
    let _inside = Inside { numbers: numbers.clone(), key, me, until };
    tokio::time::sleep(think).await;
    match headers.get("x-ending").map(http::HeaderValue::as_bytes) {
        Some(b"panic") => panic!("a handler panics, as the test wants it"),
        Some(b"error") => return Err(StatusCode::INTERNAL_SERVER_ERROR),
        _ => {}
    }
    numbers.write(key, before + 1);
    let fence = fence.map_or_else(String::new, |Extension(fence)| fence.to_string());
    Ok(([(FENCE, fence)], format!("{}.{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed))))
}

#[test]
fn a_pause_explains_only_the_handlers_that_met_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let numbers = Numbers::open(&dir.path().join("numbers"), 2);
    numbers.enter(0, 1);
    numbers.check(0, 1);
    assert_eq!(numbers.overlaps(0), 0);
    numbers.check(0, 2);
    numbers.note_pause(MARGIN / 2);
    assert_eq!((numbers.overlaps(0), numbers.pause_behind(0)), (1, None), "they met without a pause");
    numbers.note_pause(MARGIN);
    assert_eq!(numbers.pause_behind(0), Some(MARGIN));
    // One that was over long before.
    numbers.list(&format!("met 0 {}\n", millis() + 10_000));
    assert_eq!(numbers.pause_behind(0), None);
}

/// Not a case: the processes of the service begin here.
#[tokio::test(flavor = "multi_thread")]
async fn entry() {
    let Ok(settings) = std::env::var(ROLE) else { return };
    let settings: Value = serde_json::from_str(&settings).unwrap();
    let text = |name: &str| settings[name].as_str().unwrap();
    let locks = tenure_redis::connect(text("redis")).await.unwrap();
    let duplicate = match text("duplicate") {
        "wait" => Duplicate::Wait(LONG),
        "join" => Duplicate::Join,
        _ => Duplicate::Refuse,
    };
    let ttl = Duration::from_secs_f64(settings["ttl"].as_f64().unwrap());
    let on_outage = if text("duplicate") == "open" { OnOutage::FailOpen } else { OnOutage::FailClosed };
    let mut layer = LockLayer::builder(locks, "visit", Key::header(KEY), on_outage).duplicate(duplicate).ttl(ttl);
    if text("duplicate") == "cool down" {
        layer = layer.cool_down(COOL_DOWN).refuse_with(RefuseWith::TooManyRequests);
    }
    let numbers = Numbers::open(Path::new(text("numbers")), settings["keys"].as_u64().unwrap());
    let watched = numbers.clone();
    std::thread::spawn(move || {
        loop {
            let until = Instant::now() + Duration::from_millis(5);
            std::thread::sleep(Duration::from_millis(5));
            watched.note_pause(Instant::now().saturating_duration_since(until));
        }
    });
    let app = Router::new().route("/", post(visit)).with_state(numbers).layer(layer.build().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    say(std::io::stdout(), &listener.local_addr().unwrap().to_string()).unwrap();
    axum::serve(listener, app).await.unwrap();
}

/// Two processes of the service, with their Redis and their numbers.
struct Service {
    redis: RedisServer,
    processes: Vec<Spawned>,
    at: [SocketAddr; 2],
    numbers: Numbers,
    _dir: TempDir,
}

impl Service {
    fn start(duplicate: &str, keys: u64, ttl: Duration) -> Self {
        // In memory, if it can be: a handler that writes to a busy disk stands still, and cannot be ended meanwhile.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let redis = RedisServer::start();
        let numbers = dir.path().join("numbers");
        let url = if ttl == CALM { redis.url() + "?timeout=5s" } else { redis.url() };
        let settings = json!({"redis": url, "numbers": numbers, "keys": keys, "duplicate": duplicate, "ttl": ttl.as_secs_f64()});
        let mut processes = Vec::new();
        let at = [(); 2].map(|()| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "pairs::entry", "--nocapture", "--test-threads=2"]).env(ROLE, settings.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut process = Spawned::spawn(&mut command).unwrap();
            let at: String = hear(&mut BufReader::new(process.stdout.as_mut().unwrap())).unwrap().expect("an address");
            processes.push(process);
            at.parse().unwrap()
        });
        Self { redis, processes, at, numbers: Numbers::open(&numbers, keys), _dir: dir }
    }

    /// Waits until no key is taken, which has to be soon.
    async fn all_free_within(&self, limit: Duration) {
        let locks = tenure_redis::connect(&self.redis.url()).await.unwrap();
        let since = Instant::now();
        while !locks.list().await.unwrap().is_empty() {
            assert!(since.elapsed() < LONG, "still taken: {:?}", locks.list().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(since.elapsed() < limit, "all were free only after {:?}", since.elapsed());
    }
}

/// A connection that is kept. Thousands of new ones would use up the ports of the machine.
struct Line {
    at: SocketAddr,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Line {
    fn to(at: SocketAddr) -> Self {
        Self { at, sender: None }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, BoxError> {
        if self.sender.as_mut().is_none_or(|sender| sender.is_closed()) {
            let stream = TcpStream::connect(self.at).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            self.sender = Some(sender);
        }
        let Some(sender) = &mut self.sender else { unreachable!("just connected") };
        sender.ready().await?;
        Ok(Answer::of(sender.send_request(request).await?).await?)
    }
}

fn visiting(key: u64, think: u64, ending: &str) -> Request<Full<Bytes>> {
    let request = Request::post("/").header(KEY, key).header("x-think", think).header("x-ending", ending);
    request.body(Full::default()).unwrap()
}

/// A pair of answers to the same key, and whether the second was sent after the first had come.
struct Pair {
    key: u64,
    answers: [Answer; 2],
    one_process: bool,
    apart: bool,
}

async fn pairs(service: &Service, count: u64) -> Vec<Pair> {
    const CLIENTS: usize = 32;
    let next = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (at, next) = (service.at, Arc::clone(&next));
        clients.spawn(async move {
            let mut lines = [at, at].map(|at| at.map(Line::to));
            let mut pairs = Vec::new();
            loop {
                let key = next.fetch_add(1, Ordering::Relaxed);
                if key >= count {
                    return pairs;
                }
                let [to, other] = [(); 2].map(|()| fastrand::usize(..2));
                let (think, distance) = (fastrand::u64(..4_000), Duration::from_micros(fastrand::u64(..8_000)));
                // One in eight comes as soon as the first has its answer, and must find the key free.
                let follows = fastrand::u8(..8) == 0;
                let [first, second] = &mut lines;
                let (answered, came) = oneshot::channel::<()>();
                let one = async {
                    let answer = first[to].send(visiting(key, think, "")).await.unwrap();
                    let came = Instant::now();
                    drop(answered);
                    (answer, came)
                };
                let two = async {
                    if follows {
                        let _ = came.await;
                    } else {
                        tokio::time::sleep(distance).await;
                    }
                    (Instant::now(), second[other].send(visiting(key, think, "")).await.unwrap())
                };
                let ((first, came), (sent, second)) = tokio::join!(one, two);
                pairs.push(Pair { key, answers: [first, second], one_process: to == other, apart: sent >= came });
            }
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

fn count(pairs: &[Pair], which: impl Fn(&&Pair) -> bool) -> usize {
    pairs.iter().filter(which).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_pairs_are_served_one_at_a_time() {
    const PAIRS: u64 = 10_000;
    let service = Service::start("refuse", PAIRS, CALM);
    let pairs = pairs(&service, PAIRS).await;
    for Pair { key, answers, apart, .. } in &pairs {
        let served = answers.iter().filter(|answer| answer.status == 200).count() as u64;
        let refused = answers.iter().filter(|answer| answer.reason() == "in-progress").count() as u64;
        assert!(served >= 1 && served + refused == 2, "{answers:?}");
        assert_eq!(service.numbers.read(*key), served, "two handlers ran at once for {key}: {answers:?}");
        // The answer of the first was whole, so the key was free, in the other process as well.
        assert!(!apart || served == 2, "{answers:?}");
    }
    let refused = |pair: &&Pair| pair.answers.iter().any(|answer| answer.status == 409);
    let (one, two) =
        (count(&pairs, |pair| pair.one_process && refused(pair)), count(&pairs, |pair| !pair.one_process && refused(pair)));
    println!("{PAIRS} pairs: refused {one} in one process, {two} in two; {} apart", count(&pairs, |pair| pair.apart));
    assert!(one > 500 && two > 500 && count(&pairs, |pair| pair.apart) > 500, "the distances tested nothing");
    service.all_free_within(LONG / 4).await;
}

/// One of each pair is served, and the other one is refused with the time to come back, whichever
/// process it meets.
#[tokio::test(flavor = "multi_thread")]
async fn pairs_within_a_cool_down_are_served_once() {
    const PAIRS: u64 = 10_000;
    let service = Service::start("cool down", PAIRS, CALM);
    let (mut busy, mut cooling) = (0, 0);
    for Pair { key, answers, apart, .. } in pairs(&service, PAIRS).await {
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1, "{answers:?}");
        let refused = answers.iter().find(|answer| answer.status != 200).unwrap();
        assert_eq!(refused.status, 429, "{refused:?}");
        assert!((1..=3).contains(&refused.header("retry-after").parse().unwrap()), "{refused:?}");
        assert!(!apart || refused.reason() == "cool-down", "{refused:?}");
        *(if refused.reason() == "cool-down" { &mut cooling } else { &mut busy }) += 1;
        assert_eq!(service.numbers.read(key), 1, "two handlers ran for {key}");
    }
    assert!(busy > 500 && cooling > 500, "the distances tested nothing: {busy}, {cooling}");
    service.all_free_within(COOL_DOWN + LONG / 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pairs_that_wait_are_both_served() {
    const PAIRS: u64 = 10_000;
    let service = Service::start("wait", PAIRS, CALM);
    for Pair { key, answers, .. } in pairs(&service, PAIRS).await {
        assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
        service.numbers.were_alone(key);
        assert_eq!(service.numbers.read(key), 2, "two handlers ran at once for {key}");
    }
    service.all_free_within(LONG / 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pairs_that_join_share_an_answer() {
    const PAIRS: u64 = 10_000;
    let service = Service::start("join", PAIRS, CALM);
    let pairs = pairs(&service, PAIRS).await;
    let joined = |pair: &&Pair| pair.answers[0].status == 200 && pair.answers[0].body == pair.answers[1].body;
    for pair in &pairs {
        let served = pair.answers.iter().filter(|answer| answer.status == 200).count() as u64;
        let runs = if joined(&pair) { 1 } else { served };
        assert_eq!(service.numbers.read(pair.key), runs, "{:?}", pair.answers);
        assert!(!joined(&pair) || pair.one_process, "{:?}", pair.answers);
        assert!(served == 2 || !pair.one_process, "in one process the second joins: {:?}", pair.answers);
    }
    assert!(count(&pairs, joined) > 100, "the distances tested nothing");
    service.all_free_within(LONG / 4).await;
}

/// Outcome of the requests for one key.
#[derive(Default)]
struct Tally {
    served: AtomicU64,
    /// Handlers that may have written: the client did not stay for the answer, or it broke off.
    open: AtomicU64,
    /// Refused, because the store was gone.
    closed: AtomicU64,
    /// Served without a fence.
    unlocked: AtomicU64,
    /// Refused, as if this process were at fault.
    overloaded: AtomicU64,
}

#[tokio::test(flavor = "multi_thread")]
async fn hang_ups_panics_and_a_redis_that_stops_leave_no_key_taken() {
    for policy in ["refuse", "open", "wait", "join"] {
        println!("{policy}: {}", hang_ups_panics_and_stops(policy).await);
    }
}

async fn hang_ups_panics_and_stops(policy: &str) -> String {
    const KEYS: u64 = 8;
    let service = Service::start(policy, KEYS, TTL);
    let tallies: Arc<Vec<Tally>> = Arc::new((0..KEYS).map(|_| Tally::default()).collect());
    let sum = |which: fn(&Tally) -> &AtomicU64| -> u64 { tallies.iter().map(|tally| which(tally).load(Ordering::Relaxed)).sum() };
    // Those that wait do so for longer than a stop.
    let waits = policy == "wait";
    // When a stop begins, others were answered a moment ago. In the rest of it nobody is.
    let is_felt = || waits || sum(|tally| &tally.overloaded) * 2 < sum(|tally| &tally.unlocked) + sum(|tally| &tally.closed);
    let (over, visits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for _ in 0..24 {
        let (at, tallies, over, visits) = (service.at, Arc::clone(&tallies), Arc::clone(&over), Arc::clone(&visits));
        clients.spawn(async move {
            let mut lines = at.map(Line::to);
            while !over.load(Ordering::Relaxed) {
                let (key, line) = (fastrand::u64(..KEYS), &mut lines[fastrand::usize(..2)]);
                let ending = ["", "", "", "panic", "error", "hang up"][fastrand::usize(..6)];
                let tally = &tallies[usize::try_from(key).unwrap()];
                let mut request = visiting(key, fastrand::u64(..3_000), ending);
                if ending == "hang up" {
                    // Nobody reads it, so the server need not see that the client is gone.
                    *request.body_mut() = Full::from(vec![0; fastrand::usize(..1_000_000)]);
                }
                let (sent, sending) = (Instant::now(), line.send(request));
                let patience = if ending == "hang up" { Duration::from_micros(fastrand::u64(..3_000)) } else { LONG };
                let answer = tokio::time::timeout(patience, sending).await;
                visits.fetch_add(1, Ordering::Relaxed);
                match answer {
                    Ok(Ok(answer)) if answer.status == 200 => {
                        tally.unlocked.fetch_add(u64::from(answer.fence().is_none()), Ordering::Relaxed);
                        tally.served.fetch_add(1, Ordering::Relaxed)
                    }
                    Ok(Ok(answer)) if answer.reason() == "store-unavailable" => tally.closed.fetch_add(1, Ordering::Relaxed),
                    // A process that was late itself says so rightly.
                    Ok(Ok(answer)) if answer.reason() == "overloaded" => {
                        tally.overloaded.fetch_add(u64::from(sent.elapsed() < TTL / 5), Ordering::Relaxed)
                    }
                    Ok(Ok(answer)) if answer.reason() != "lock-lost" => 0,
                    Ok(_) => tally.open.fetch_add(1, Ordering::Relaxed),
                    Err(_) => {
                        line.sender = None;
                        tally.open.fetch_add(1, Ordering::Relaxed)
                    }
                };
            }
        });
    }
    // Shorter than the ttl, and longer.
    for stop in [300, 2_000] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        service.redis.stop();
        let stop = Duration::from_millis(stop);
        tokio::time::sleep(stop).await;
        let began = Instant::now();
        while stop > TTL && !is_felt() && began.elapsed() < LONG {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        service.redis.cont();
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    over.store(true, Ordering::Relaxed);
    clients.join_all().await;
    service.all_free_within(TTL + Duration::from_millis(500)).await;
    let (all, closed, unlocked) = (sum(|tally| &tally.served), sum(|tally| &tally.closed), sum(|tally| &tally.unlocked));
    let (visits, overloaded) = (visits.load(Ordering::Relaxed), sum(|tally| &tally.overloaded));
    let told =
        format!("{visits} requests, {all} served, {unlocked} of them unlocked, {closed} refused, {overloaded} as overloaded");
    assert!(is_felt(), "most of the stops was taken for overload: {told}");
    assert!(all > unlocked, "nobody was served under a lock");
    if policy == "open" {
        // Without locks, handlers may run at once.
        assert!(unlocked > 0 && closed == 0, "the stops were not felt: {told}");
        return told;
    }
    assert!(unlocked == 0 && (waits || closed > 0), "the stops were not felt: {told}");
    for (key, tally) in (0..).zip(tallies.iter()) {
        let (served, open) = (tally.served.load(Ordering::Relaxed), tally.open.load(Ordering::Relaxed));
        service.numbers.were_alone(key);
        let number = service.numbers.read(key);
        // Several get one answer when they join.
        let least = if policy == "join" { 1 } else { served };
        assert!((least..=served + open).contains(&number), "key {key}: {number} of {served} and {open} more");
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_a_killed_process_are_free_after_the_ttl() {
    let mut service = Service::start("wait", 1, TTL);
    let mut lines = service.at.map(Line::to);
    let locks = tenure_redis::connect(&service.redis.url()).await.unwrap();
    let [killed, other] = &mut lines;
    let hanging = async { killed.send(visiting(0, 60_000_000, "")).await.map(|_| ()).unwrap_err() };
    let killing = async {
        while is_free(&locks, "visit:0").await {
            tokio::task::yield_now().await;
        }
        service.processes[0].kill();
        Instant::now()
    };
    let (_, since) = tokio::join!(hanging, killing);
    assert_eq!(other.send(visiting(0, 0, "")).await.unwrap().status, 200);
    assert!(since.elapsed() < TTL + Duration::from_millis(500), "free only after {:?}", since.elapsed());
}
