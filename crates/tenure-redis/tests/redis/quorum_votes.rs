//! Answers of a quorum while one of its servers is at fault.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure::store::{AcquireReply, Store};
use tenure::{Locker, Waiting};
use tenure_testkit::{Proxy, RedisServer};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::quorum::{Servers, asks, granted, quorum, release, wait_for};
use crate::{LONG, PATIENCE, patient};

type Fault = fn(&RedisServer, &Proxy);

const FAR: &str = "is far";

/// Faults of one server of three.
const FAULTS: [(&str, Fault); 4] = [
    ("refuses connections", |_, proxy| {
        proxy.refuse();
        proxy.cut();
    }),
    ("is silent", |_, proxy| proxy.black_hole()),
    (FAR, |_, proxy| proxy.delay(Duration::from_millis(200))),
    ("does not vote", |server, _| assert_eq!(server.command(&["FLUSHALL"]), "OK")),
];

/// Whichever server it is, and in whatever order the others answer.
#[tokio::test]
async fn a_try_finds_a_name_busy_while_one_server_of_three_is_at_fault() {
    for (fault, begin) in FAULTS {
        let all = Servers::start(3);
        let url = patient(&all.url());
        let (a, b) = (quorum(&url).await, quorum(&url).await);
        for away in 0..3 {
            let (door, gate) = (format!("door {away}"), format!("gate {away}"));
            let has = |at: usize, name: &str| all.servers[at].0.command(&["EXISTS", name]) == 1;
            granted(&a, &door, LONG).await;
            wait_for("all to grant it", || (0..3).all(|at| has(at, &door))).await;
            let (server, proxy) = &all.servers[away];
            begin(server, proxy);
            let [one, other] = [(away + 1) % 3, (away + 2) % 3];
            all.servers[one].0.command(&["SET", &gate, "another", "PX", "60000"]);
            for name in [&door, &door, &gate] {
                let request = asks(name, LONG);
                let answer = b.acquire(&request).await;
                let is_granted = matches!(answer, Ok(AcquireReply::Granted(_)));
                // At one that is far it is free, as at the other. It is waited for unless it was near before.
                assert!(
                    matches!(answer, Ok(AcquireReply::Busy(_))) || is_granted && fault == FAR && *name == gate,
                    "server {away} {fault}, {name}: {answer:?}"
                );
                if is_granted {
                    release(&b, &request).await;
                }
            }
            wait_for("what one has granted to be released", || !has(other, &gate)).await;
            proxy.accept();
            proxy.heal();
            proxy.cut();
            a.admit().await.unwrap();
        }
    }
}

/// For longer than a store is asked that never answered.
#[tokio::test]
async fn a_wait_without_a_limit_goes_on_while_one_server_of_three_is_at_fault() {
    let mut waits = JoinSet::new();
    for (fault, begin) in FAULTS {
        waits.spawn(async move {
            let all = Servers::start(3);
            let url = patient(&all.url());
            let held = Locker::new(quorum(&url).await).mutex("door").ttl(LONG).acquire().await.unwrap();
            wait_for("all to grant it", || all.servers.iter().all(|(server, _)| server.command(&["EXISTS", "door"]) == 1)).await;
            let (server, proxy) = &all.servers[0];
            begin(server, proxy);
            let locks = Locker::new(quorum(&url).await);
            let acquire = locks.mutex("door").ttl(LONG).acquire();
            let mut acquire = std::pin::pin!(acquire);
            tokio::select! {
                ended = &mut acquire => panic!("a server {fault}: {:?}", ended.map(drop)),
                () = sleep(Duration::from_secs(7)) => (),
            }
            drop(held);
            let next = timeout(PATIENCE, acquire).await.expect("it is never granted").unwrap();
            let _ = next.release().await.unwrap();
        });
    }
    while waits.join_next().await.transpose().unwrap().is_some() {}
}

/// From the begin of a release to the waiter's grant. In turns, so all have the same machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_takes_at_most_twice_as_long_while_one_server_of_three_is_down() {
    let all = Servers::start(3);
    let mut ways = Vec::new();
    for (fault, begin) in [("all are up", None), (FAULTS[0].0, Some(FAULTS[0].1)), (FAULTS[1].0, Some(FAULTS[1].1))] {
        let proxies: Vec<Proxy> = all.servers.iter().map(|(server, _)| Proxy::start(server.addr())).collect();
        let hosts: Vec<String> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        let url = format!("quorum+redis://{}", hosts.join(","));
        let locks = [Locker::new(quorum(&url).await), Locker::new(quorum(&url).await)];
        if let Some(begin) = begin {
            begin(&all.servers[0].0, &proxies[0]);
        }
        ways.push((fault, locks, proxies, Vec::new()));
    }
    for _ in 0..61 {
        for (fault, [holder, waiter], _, took) in &mut ways {
            let held = timeout(PATIENCE, holder.mutex(*fault).ttl(LONG).acquire()).await.expect("it is free").unwrap();
            let (waits, waiting) = oneshot::channel();
            let waits = Mutex::new(Some(waits));
            let tell = move |_: Waiting<'_>| {
                if let Some(waits) = waits.lock().unwrap().take() {
                    waits.send(()).unwrap();
                }
            };
            let next = waiter.mutex(*fault).ttl(LONG).on_wait(tell);
            let next = tokio::spawn(async move { (next.acquire().await.unwrap(), Instant::now()) });
            waiting.await.unwrap();
            // The holder has work to do meanwhile.
            sleep(Duration::from_millis(10)).await;
            let began = Instant::now();
            held.release().await.unwrap();
            let (next, granted) = timeout(PATIENCE, next).await.expect("it is handed over").unwrap();
            took.push(granted - began);
            next.release().await.unwrap();
        }
    }
    let middle = |took: &mut Vec<Duration>| {
        took.sort_unstable();
        took[took.len() / 2]
    };
    let middles: Vec<_> = ways.iter_mut().map(|(fault, _, _, took)| (*fault, middle(took))).collect();
    println!("{middles:?}");
    for (fault, took) in &middles[1..] {
        assert!(*took <= 2 * middles[0].1, "one {fault}: {middles:?}");
    }
}
