//! Writes that the server has answered, and what the client cannot learn of them: the item seems to be of another time, and the
//! connection breaks when the server is asked for its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::store::{ReleaseReply, Store};
use tenure::{Error, Locker, Name, Owner, Share};
use tenure_testkit::{MemcachedServer, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::clocks::with_clock;
use crate::requests::{granted, owner, request};
use crate::{PATIENCE, open};

/// Plan of a way for the next write, once it is armed.
#[derive(Clone, Copy, Default)]
struct Plan {
    stage: Stage,
    /// Its answer shows another time.
    lies: bool,
    /// Number of questions for the time behind it that are answered. The next one cuts the connection.
    told: u32,
    /// No connection is taken after that.
    ends: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Passes,
    Armed,
    Written,
    Cut,
}

/// A way to a server that hides what became of a write.
struct Way {
    addr: SocketAddr,
    plan: Arc<Mutex<Plan>>,
}

impl Way {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (addr, plan) = (listener.local_addr().unwrap(), Arc::<Mutex<Plan>>::default());
        let theirs = Arc::clone(&plan);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let now = *theirs.lock().unwrap();
                if !(now.ends && now.stage == Stage::Cut) {
                    let server = TcpStream::connect(server).await.unwrap();
                    let ((from, to), (answers, back)) = (client.into_split(), server.into_split());
                    let answers = tokio::spawn(answered(answers, to, Arc::clone(&theirs)));
                    let theirs = Arc::clone(&theirs);
                    tokio::spawn(async move {
                        asked(from, back, &theirs).await;
                        answers.abort();
                    });
                }
            }
        });
        Self { addr, plan }
    }

    fn arm(&self, plan: Plan) {
        *self.plan.lock().unwrap() = Plan { stage: Stage::Armed, ..plan };
    }

    fn heal(&self) {
        *self.plan.lock().unwrap() = Plan::default();
    }

    fn has_cut(&self) -> bool {
        self.plan.lock().unwrap().stage == Stage::Cut
    }
}

async fn asked(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, plan: &Mutex<Plan>) {
    let mut buffer = [0; 4_096];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        {
            let mut plan = plan.lock().unwrap();
            match plan.stage {
                Stage::Armed if text.starts_with("add ") || text.starts_with("cas ") => plan.stage = Stage::Written,
                Stage::Written if text.starts_with("stats") && plan.told == 0 => {
                    plan.stage = Stage::Cut;
                    return;
                }
                Stage::Written if text.starts_with("stats") => plan.told -= 1,
                _ => {}
            }
        }
        to.write_all(&buffer[..length]).await.unwrap();
    }
}

async fn answered(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, plan: Arc<Mutex<Plan>>) {
    let mut buffer = [0; 4_096];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let mut answer = buffer[..length].to_vec();
        let now = *plan.lock().unwrap();
        if (now.stage, now.lies) == (Stage::Written, true)
            && let Some(at) = answer.windows(3).position(|bytes| bytes == b" f1")
        {
            // Its end, ten million seconds off.
            let digit = &mut answer[at + 4];
            *digit = if *digit == b'9' { b'8' } else { *digit + 1 };
        }
        if to.write_all(&answer).await.is_err() {
            break;
        }
    }
}

/// A store behind such a way, and one that reaches its server without it.
async fn behind_way() -> (MemcachedServer, Way, Arc<dyn Store>, Arc<dyn Store>) {
    let server = MemcachedServer::start();
    let (way, store) = way_to(&server).await;
    let other = open(&server.url()).await;
    (server, way, store, other)
}

async fn way_to(server: &MemcachedServer) -> (Way, Arc<dyn Store>) {
    let way = Way::to(server.addr()).await;
    let store = open(&format!("memcached://{}?timeout=10s", way.addr)).await;
    (way, store)
}

async fn holders(store: &dyn Store) -> usize {
    let entries = store.inspect(Some(&Name::new("x").unwrap())).await.unwrap();
    entries.iter().map(|entry| entry.holders.len()).sum()
}

fn may_be_there(error: &Error) {
    assert!(error.may_have_been_applied(), "it was written: {error:?}");
}

/// Nobody releases what was certainly not taken. It would stay taken for its whole ttl.
#[tokio::test]
async fn an_acquisition_that_was_written_is_cleaned_up() {
    let (_server, way, store, other) = behind_way().await;
    let plan = Plan { lies: true, ends: true, ..Plan::default() };
    way.arm(plan);
    may_be_there(&store.acquire(&request("x", &owner())).await.unwrap_err());
    assert!(way.has_cut());
    assert_eq!(holders(&*other).await, 1, "nothing was written, so nothing is tested");
    way.arm(plan);
    let locks = Locker::new(store);
    locks.mutex("y").ttl(Duration::from_secs(60)).try_acquire().await.unwrap_err();
    assert!(way.has_cut());
    way.heal();
    let next = Locker::new(other).mutex("y").wait(PATIENCE).acquire().await;
    assert!(next.is_ok(), "the name is taken for nobody: {next:?}");
}

/// It is to be written again, and the connection breaks before that.
#[tokio::test]
async fn a_lease_that_ends_too_soon_is_there() {
    let (clock, server) = with_clock();
    let (way, store) = way_to(&server).await;
    let before = server.stat("time");
    clock.shift_monotonic(40_000);
    wait_until(PATIENCE, "the server to notice", || server.stat("time") >= before + 40);
    way.arm(Plan { told: 1, ends: true, ..Plan::default() });
    may_be_there(&store.acquire(&request("x", &owner()).with_ttl(Duration::from_secs(60))).await.unwrap_err());
    assert!(way.has_cut());
    assert_eq!(holders(&*open(&server.url()).await).await, 1, "nothing was written, so nothing is tested");
}

/// The second try would find the lease of the first, and take it for that of another client.
#[tokio::test]
async fn a_supplied_token_that_was_written_is_not_its_own_rival() {
    let (_server, way, store, _other) = behind_way().await;
    let given = request("x", &Owner::from_bytes(&b"token"[..])).with_generated(false);
    way.arm(Plan { lies: true, ..Plan::default() });
    may_be_there(&store.acquire(&given).await.expect_err("the answer was lost"));
    assert!(way.has_cut());
}

/// The second try finds nothing, because the first was done.
#[tokio::test]
async fn a_release_that_was_written_is_not_a_loss() {
    let (_server, way, store, other) = behind_way().await;
    let readers = [owner(), owner()].map(|owner| request("x", &owner).with_share(Share::READ));
    for reader in &readers {
        granted(&store, reader).await;
    }
    way.arm(Plan { lies: true, ..Plan::default() });
    let released = store.release(&readers[0].lease(), Duration::ZERO).await;
    assert!(way.has_cut());
    match released {
        Ok(reply) => assert_eq!(reply, ReleaseReply::Released),
        Err(error) => may_be_there(&error),
    }
    assert_eq!(holders(&*other).await, 1);
}
