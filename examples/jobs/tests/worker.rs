//! The worker of the task queue by itself, at the moments that a run of the example seldom meets.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up does")]
#![allow(dead_code, clippy::future_not_send, reason = "they are parts of a program")]

#[path = "../task_queue/queue.rs"]
mod queue;
#[path = "../task_queue/tasks.rs"]
mod tasks;
#[path = "../task_queue/worker.rs"]
mod worker;

use std::time::Duration;

use jobs::{Place, open_locks};
use tokio::time::timeout;

use crate::queue::Queue;
use crate::tasks::Tasks;
use crate::worker::{Mode, Worker};

const TTL: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(20);

/// A worker, and its store of locks, on files or at a Redis.
async fn worker(place: &Place) -> (Worker, String) {
    let (table, redis) = (place.file("tasks.db"), place.redis());
    let store = place.locks("locks.db");
    let tasks = Tasks::create(&table).unwrap();
    let queue = Queue::open(redis, "queue", &table).await.unwrap();
    (Worker::new(Mode::Fence, open_locks(&store, TTL).await.unwrap(), String::new(), tasks, queue, 0.0), store)
}

/// A producer died between the two. The queue is never empty meanwhile, as under steady load.
#[tokio::test]
async fn a_task_outside_the_queue_is_found_though_the_queue_is_never_empty() {
    for store in ["embedded", "redis"] {
        let place = Place::new(Some(store)).unwrap();
        let (mut worker, locks) = worker(&place).await;
        for task in [1, 2] {
            assert!(worker.tasks.make(task).unwrap());
        }
        worker.queue.put(1).await.unwrap();
        let busy = open_locks(&locks, TTL).await.unwrap().mutex("task/1").acquire().await.unwrap();
        let table = place.file("tasks.db");
        let (audit, mut queue) = (Tasks::open(&table).unwrap(), Queue::open(place.redis(), "queue", &table).await.unwrap());
        let is_done = async {
            while audit.audit().unwrap().done < 1 || queue.head().await.unwrap() != [1] {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            done = timeout(PATIENCE, is_done) => done.unwrap_or_else(|_| panic!("{store}: the task was never done")),
            work = worker.work() => panic!("{store}: {work:?}"),
        }
        assert_eq!(audit.open_tasks(Duration::ZERO).unwrap(), [1], "{store}");
        let _ = busy.release().await.unwrap();
    }
}

/// A stale worker, whose write was refused. The true holder may die next: the task has to be found.
#[tokio::test]
async fn a_worker_that_was_refused_leaves_the_task_in_the_queue() {
    let place = Place::new(None).unwrap();
    let (mut worker, _) = worker(&place).await;
    assert!(worker.tasks.make(1).unwrap());
    worker.queue.put(1).await.unwrap();
    // A later holder was here.
    assert_eq!(worker.tasks.is_done(1, Some(i64::MAX)).unwrap(), Some(false));
    assert!(worker.one_of_the_first().await.unwrap());
    let audit = worker.tasks.audit().unwrap();
    assert_eq!((audit.done, audit.refused), (0, 1));
    assert_eq!(worker.queue.head().await.unwrap(), [1], "it took the task from the queue");
    // One that finds it done takes it out.
    assert!(worker.tasks.done(1, Some(i64::MAX)).unwrap());
    let done = worker.tasks.0.execute("UPDATE tasks SET fence = 0", []).unwrap();
    assert_eq!(done, 1);
    assert!(worker.one_of_the_first().await.unwrap());
    assert!(worker.queue.head().await.unwrap().is_empty());
}
