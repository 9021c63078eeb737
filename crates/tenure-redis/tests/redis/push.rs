//! Pushes to the Redis store: who can hear them, and what the store does when one may have been missed.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Enqueue, Notice, RenewReply, Request, Store};
use tenure::{Lease, Name, Owner, Share};
use tenure_redis::Options;
use tenure_testkit::{Proxy, RedisServer, wait_until};
use tokio::time::timeout;

use crate::steps::fence_of;
use crate::subject::Lent;
use crate::{LONG, answered, behind_proxy, patient, store};

const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing must come for nothing to have come.
const QUIET: Duration = Duration::from_millis(100);

type Notices = BoxStream<'static, Notice>;

fn request(label: &str) -> Request {
    let (name, owner) = (Name::new("door").unwrap(), Owner::generate(label).unwrap());
    Request::new(name, owner, Share::MUTEX, LONG)
}

/// The channels that somebody listens to.
fn channels(server: &RedisServer) -> Vec<String> {
    server.cli("PUBSUB CHANNELS *tenure:wake:*").lines().map(str::to_owned).collect()
}

/// Publishes to `owner`. Returns how many connections got it.
fn publish(server: &RedisServer, channel: &str, owner: &Owner) -> i64 {
    let message = [b"hint ", owner.as_bytes()].concat();
    server.command(&[&b"PUBLISH"[..], channel.as_bytes(), &message]).int()
}

async fn heard(notices: &mut Notices) {
    assert_eq!(timeout(PATIENCE, notices.next()).await.expect("nothing was heard"), Some(Notice::Changed));
}

async fn is_quiet(notices: &mut Notices) -> bool {
    timeout(QUIET, notices.next()).await.is_err()
}

/// Hears what there is to hear, until nothing comes any more.
async fn hush(notices: &mut Notices) {
    while !is_quiet(notices).await {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_waiter_hears_what_is_for_it() {
    let server = Lent::alone();
    let (store, other) = (store(&format!("{}?prefix=app:", server.url())).await, store(&server.url()).await);
    assert!(channels(&server).is_empty(), "nobody has asked for any");
    let (mine, next, theirs) = (request("host"), request("two words and 100%"), request("other"));
    let mut my_notices = store.watch(&mine).await.unwrap();
    let armed = channels(&server);
    assert!(matches!(&armed[..], [channel] if channel.starts_with("app:tenure:wake:") && channel.len() == 32), "{armed:?}");
    let mut next_notices = store.watch(&next).await.unwrap();
    assert_eq!(channels(&server), armed, "one channel for all of a store");
    let mut their_notices = other.watch(&theirs).await.unwrap();
    assert_eq!(channels(&server).len(), 2);
    assert_eq!(publish(&server, &armed[0], &next.owner), 1);
    heard(&mut next_notices).await;
    assert_eq!(publish(&server, &armed[0], &theirs.owner), 1);
    assert_eq!(server.cli(&format!("PUBLISH {} nonsense", armed[0])), "1");
    assert!(is_quiet(&mut my_notices).await && is_quiet(&mut their_notices).await && is_quiet(&mut next_notices).await);
    assert_eq!(publish(&server, &armed[0], &mine.owner), 1);
    heard(&mut my_notices).await;
}

/// A second listener asks the server nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listening_again_is_free() {
    let (server, proxy, store) = behind_proxy("10s").await;
    let all = (0..100).map(|i| request(&i.to_string())).collect::<Vec<_>>();
    let notices = futures_util::future::join_all(all.iter().map(|request| store.watch(request))).await;
    let asked = proxy.log().iter().filter(|name| *name == "SUBSCRIBE").count();
    assert_eq!(asked, 1, "all at once ask once");
    drop(notices);
    let commands = proxy.commands();
    let mut notices = store.watch(&all[0]).await.unwrap();
    assert_eq!(proxy.commands(), commands);
    publish(&server, &channels(&server)[0], &all[0].owner);
    heard(&mut notices).await;
}

/// A new link hears pushes before anybody uses it, and every listener is notified that something may have changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_link_is_replaced_by_one_that_hears() {
    for kill in [false, true] {
        let server = Lent::alone();
        let proxy = Proxy::start(server.addr());
        let store = store(&proxy.url()).await;
        let mine = request("host");
        let mut notices = store.watch(&mine).await.unwrap();
        let channel = channels(&server).remove(0);
        if kill {
            server.cli("CLIENT KILL TYPE pubsub");
        } else {
            proxy.cut();
        }
        heard(&mut notices).await;
        wait_until(PATIENCE, "the end of the link", || channels(&server).is_empty());
        store.inspect(Some(&mine.name)).await.unwrap();
        assert_eq!(channels(&server), [&*channel], "kill {kill}: the new link must hear from the start");
        heard(&mut notices).await;
        hush(&mut notices).await;
        assert_eq!(publish(&server, &channel, &mine.owner), 1);
        heard(&mut notices).await;
    }
}

/// A link that only fell silent is replaced too; what was published meanwhile may be lost, and the look says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_pushes_come_late_or_as_a_look() {
    let (server, proxy, store) = behind_proxy("400ms").await;
    let mine = request("host");
    let mut notices = store.watch(&mine).await.unwrap();
    let channel = channels(&server).remove(0);
    proxy.hold_replies();
    publish(&server, &channel, &mine.owner);
    assert!(is_quiet(&mut notices).await);
    proxy.release_replies();
    heard(&mut notices).await;
    proxy.swallow_reply(1);
    store.inspect(Some(&mine.name)).await.unwrap();
    heard(&mut notices).await;
    hush(&mut notices).await;
    assert_eq!(publish(&server, &channel, &mine.owner), 1, "the silent link has ended");
    heard(&mut notices).await;
}

/// The subscription itself goes unanswered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_subscription_is_made_on_another_link() {
    let (server, proxy, store) = behind_proxy("400ms").await;
    let mine = request("host");
    proxy.swallow_reply(1);
    let mut notices = store.watch(&mine).await.unwrap();
    hush(&mut notices).await;
    publish(&server, &channels(&server)[0], &mine.owner);
    heard(&mut notices).await;
}

/// Fences rise over one that was pushed when the counter is set back: by the server's clock at once, and by the number itself, which may
/// be ahead of the clock, from the first renewal on, which reads the counter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_over_a_pushed_one() {
    for (ahead, renewed) in [(0, false), (900_000, true)] {
        for scheme in ["native", "watch"] {
            let server = Lent::alone();
            let open = async || Options::parse(&format!("{}?scheme={scheme}", server.url())).unwrap().open().await.unwrap();
            let (theirs, ours) = (open().await, open().await);
            let held = request("other");
            fence_of(&*theirs, &held).await;
            let enqueue = Enqueue::Join { entry_ttl: LONG, handoff_ttl: PATIENCE };
            let waiting = request("host").with_enqueue(enqueue);
            let mut notices = ours.watch(&waiting).await.unwrap();
            assert!(matches!(ours.acquire(&waiting).await.unwrap(), AcquireReply::Busy(_)));
            // A counter that was not looked after for a second is raised, and that would hide it.
            tokio::time::sleep(Duration::from_millis(1_050)).await;
            let named = |name: &str| request("host").with_name(Name::new(name).unwrap());
            let seen = fence_of(&*ours, &named("raise")).await.counter();
            server.cli(&format!("INCRBY tenure:fence {ahead}"));
            let lease = |request: &Request, fence| {
                let Request { name, owner, share, .. } = request.clone();
                Lease::new(name, owner, share, LONG).with_fence(fence)
            };
            theirs.release(&lease(&held, None), Duration::ZERO).await.unwrap();
            let pushed = loop {
                if let Some(Notice::Granted { fence, .. }) = timeout(PATIENCE, notices.next()).await.expect("nothing was heard") {
                    break fence;
                }
            };
            if renewed {
                assert!(matches!(ours.renew(&[lease(&waiting, Some(pushed))]).await[..], [Ok(RenewReply::Renewed)]));
            }
            server.cli(&format!("SET tenure:fence {}", seen + 5));
            assert!(pushed.counter() > seen + 6, "{pushed:?} is not above {seen}");
            let later = fence_of(&*ours, &named("later")).await;
            assert!(later > pushed, "{scheme}: {later} after {pushed}, {ahead} ahead");
        }
    }
}

/// Without the right to the channel and without RESP3 locks work, and nothing is heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_can_be_heard_locks_work() {
    for (rule, hello) in [("resetchannels", true), ("-subscribe", true), ("+@all", false)] {
        let renamed = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&renamed, if hello { "" } else { "rename-command HELLO GREET\n" }).unwrap();
        let server = RedisServer::builder().arg("include", renamed.path().to_str().unwrap()).start();
        server.cli(&format!("ACL SETUSER app on >pw ~* &* +@all {rule}"));
        let proxy = Proxy::start(server.addr());
        let store = store(&patient(&format!("redis://app:pw@{}", proxy.addr()))).await;
        let mine = request("host");
        let mut notices = store.watch(&mine).await.unwrap();
        let shown = format!("{store:?}");
        assert!(shown.contains("channel: None"), "{rule}: {shown}");
        let asked = proxy.log().iter().filter(|name| *name == "SUBSCRIBE").count();
        assert_eq!(asked, usize::from(hello), "{rule}: in RESP2 a subscriber can send nothing else");
        let locks = tenure::Locker::new(store.clone());
        let guard = locks.mutex("door").acquire().await.unwrap();
        assert!(is_quiet(&mut notices).await);
        proxy.cut();
        assert!(matches!(answered(guard.release().await), tenure::ReleaseOutcome::Released), "{rule}");
        heard(&mut notices).await;
        drop(store.watch(&mine).await.unwrap());
        assert!(format!("{store:?}").contains("channel: None"), "{rule}: {store:?}");
    }
}

#[cfg(feature = "redis-1")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brought_connection_hears_nothing() {
    let server = Lent::alone();
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let store = tenure_redis::over(client.get_multiplexed_async_connection().await.unwrap(), "");
    let mut notices = store.watch(&request("host")).await.unwrap();
    assert!(channels(&server).is_empty());
    assert!(format!("{store:?}").contains("channel: None"), "{store:?}");
    assert!(is_quiet(&mut notices).await);
}

async fn sees(leaders: &mut BoxStream<'static, Result<Option<tenure::Leader>, tenure::Error>>, label: Option<&str>) {
    let seen = async {
        // The fence may come as one more item.
        while leaders.next().await.unwrap().unwrap().as_ref().and_then(|leader| leader.label()) != label {}
    };
    timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("{label:?} was not seen"));
}

/// An observer has no entry in a queue. The server tracks the key for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_hardly_polls_sees_each_leader() {
    let server = Lent::alone();
    let (here, there) =
        (tenure_redis::connect(&server.url()).await.unwrap(), tenure_redis::connect(&server.url()).await.unwrap());
    let mut leaders = here.election("door").poll_interval(LONG).observe();
    sees(&mut leaders, None).await;
    for own in [false, true, false] {
        let locks = if own { &here } else { &there };
        let first = locks.election("door").candidate("first").campaign().await.unwrap();
        sees(&mut leaders, Some("first")).await;
        let second = locks.election("door").candidate("second");
        let second = tokio::spawn(async move { second.campaign().await.unwrap() });
        tokio::time::sleep(QUIET).await;
        first.resign().await.unwrap();
        let second = second.await.unwrap();
        sees(&mut leaders, Some("second")).await;
        second.resign().await.unwrap();
        sees(&mut leaders, None).await;
        // A new connection has the server track it, too.
        server.cli("CLIENT KILL TYPE normal SKIPME yes");
    }
}

/// Who may not have keys tracked polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_without_the_right_to_track_polls() {
    let server = Lent::alone();
    server.cli("ACL SETUSER user on >pw ~* &* +@all -client|tracking");
    let url = format!("redis://user:pw@{}", server.addr());
    let (here, there) = (tenure_redis::connect(&url).await.unwrap(), tenure_redis::connect(&url).await.unwrap());
    let mut leaders = here.election("door").poll_interval(Duration::from_millis(50)).observe();
    sees(&mut leaders, None).await;
    let leadership = there.election("door").candidate("first").campaign().await.unwrap();
    sees(&mut leaders, Some("first")).await;
    leadership.resign().await.unwrap();
    sees(&mut leaders, None).await;
}
