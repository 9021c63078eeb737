//! Each call dropped at each of its polls: before it was sent, while it waits behind another, while it runs, and when its answer is
//! there. What the thread does for it comes before what is sent after it.

use std::time::Duration;

use tenure::Lease;
use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Store as _};
use tenure_sql::SqliteStore;

use crate::common::{fresh, granted, lease, owner, patient, raw, request};
use crate::requests::{CALLS, Case, drop_after};

const POLLS: usize = 3;
/// In which state the thread is when the call comes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Thread {
    Idle,
    /// The call begins, and waits for another process.
    Waits,
    /// A call before it waits for another process.
    IsBusy,
}

#[expect(clippy::future_not_send, reason = "SQLite's connection stays on its thread")]
async fn is_consistent(thread: Thread, what: &str, polls: usize) {
    let (_dir, path) = fresh();
    let store = patient(&path);
    let case = Case { store: &store, owner: owner(), held: owner() };
    granted(&store, &request("taken", &case.held)).await;
    granted(&store, &request("mine", &case.held)).await;
    let blocker = raw(&path);
    if thread != Thread::Idle {
        blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    }
    let before = async {
        if thread == Thread::IsBusy {
            granted(&store, &request("before", &case.held)).await;
        }
    };
    let after = async {
        if thread != Thread::Idle && polls > 1 {
            // Its answer comes when the other process is done.
            tokio::join!(case.call(what, polls), unblock(&blocker));
        } else {
            case.call(what, polls).await;
        }
        // Sent behind it, and so run after it.
        let cleared = ["x", "y", "taken"].map(|name| lease(name, &case.owner));
        let [x, y, taken] = &cleared;
        let clear = async { tokio::join!(clear(&store, x), clear(&store, y), clear(&store, taken)) };
        if thread != Thread::Idle && polls <= 1 {
            tokio::join!(clear, unblock(&blocker));
        } else {
            clear.await;
        }
    };
    tokio::join!(before, after);
    let text = format!("{what} dropped after {polls} polls, the thread {thread:?}");
    for entry in store.inspect(None).await.unwrap() {
        let ours = entry.holders.iter().any(|holder| holder.owner == case.owner);
        assert!(!ours && entry.waiters.is_empty(), "{text}: {entry:?} is left");
    }
    let kept = store.renew(&[lease("mine", &case.held)]).await.remove(0).unwrap();
    let given_up = what == "release" && polls > 0;
    assert_eq!(kept == RenewReply::Gone, given_up, "{text}: a release that was sent is done, and nothing else gives up");
    let next = request("x", &owner());
    assert!(matches!(store.acquire(&next).await.unwrap(), AcquireReply::Granted(_)), "{text}");
}

async fn clear(store: &SqliteStore, lease: &Lease) {
    assert!(matches!(store.release(lease, Duration::ZERO).await.unwrap(), ReleaseReply::Released | ReleaseReply::NotHeld));
}

#[expect(clippy::future_not_send, reason = "SQLite's connection stays on its thread")]
/// The thread has come to wait by then; if not, the case is that of an idle one.
async fn unblock(blocker: &rusqlite::Connection) {
    tokio::time::sleep(Duration::from_millis(20)).await;
    blocker.execute_batch("ROLLBACK").unwrap();
}

#[tokio::test]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    for thread in [Thread::Idle, Thread::Waits, Thread::IsBusy] {
        for what in CALLS {
            for polls in 0..=POLLS {
                is_consistent(thread, what, polls).await;
            }
        }
    }
    println!("{} calls, dropped after 0 to {POLLS} polls, on a thread in 3 states", CALLS.len());
}

/// A dropped call that has not begun is left out, so that the caller's clean-up has less to do.
/// A release or a renewal is not left out.
#[tokio::test]
async fn what_was_dropped_before_it_began_is_left_out() {
    let (_dir, path) = fresh();
    let store = patient(&path);
    let (held, dropped) = (owner(), owner());
    granted(&store, &request("mine", &held)).await;
    let blocker = raw(&path);
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let sent = async {
        drop_after(1, store.acquire(&request("x", &dropped))).await;
        drop_after(1, store.release(&lease("mine", &held), Duration::ZERO)).await;
        unblock(&blocker).await;
    };
    let before = request("before", &held);
    let (first, ()) = tokio::join!(store.acquire(&before), sent);
    assert!(matches!(first.unwrap(), AcquireReply::Granted(_)));
    let names: Vec<_> = store.inspect(None).await.unwrap().into_iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(names, ["before"], "x was not asked for any more, and mine was given up");
}
