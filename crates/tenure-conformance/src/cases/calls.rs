//! Every public async call of the core, each in a situation of its own: what cancelling and unheard answers are tried on.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure::store::Store;
use tenure::{Acquire, Error, ErrorKind, Fence, Guard, Guards, Lease, Locker, Share, State};
use tokio::task::JoinHandle;

use super::steps::LONG;

/// How long the work takes that is done under a guard.
const STEP: Duration = Duration::from_millis(2);

/// One call in one situation.
pub(super) struct Call {
    /// The function.
    pub(super) name: &'static str,
    pub(super) when: &'static str,
    /// The kind of lock it is about, for those who wait for it as well.
    pub(super) kind: fn(&Locker, &str) -> Acquire,
    pub(super) shares: bool,
    /// It waits for what does not come.
    pub(super) endless: bool,
    /// It waits for what another task asks of the store.
    pub(super) elsewhere: bool,
    pub(super) before: for<'a> fn(&'a Scene) -> BoxFuture<'a, Parts>,
    pub(super) run: for<'a> fn(&'a Scene, &'a mut Parts) -> BoxFuture<'a, Result<(), Error>>,
}

/// Two lockers on one store, and a name that nobody has used.
pub(super) struct Scene {
    pub(super) here: Locker,
    pub(super) there: Locker,
    pub(super) name: String,
    pub(super) kind: fn(&Locker, &str) -> Acquire,
}

/// Leases and guards of a call, by holder: those that are left when the call is over.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) mine: Vec<Guard>,
    pub(super) all: Option<Guards>,
    pub(super) theirs: Option<Guard>,
    pub(super) lease: Option<Lease>,
    helper: Option<JoinHandle<()>>,
}

impl Scene {
    pub(super) fn lock(&self, locks: &Locker) -> Acquire {
        (self.kind)(locks, &self.name).ttl(LONG).poll_interval(Duration::from_millis(20))
    }

    fn several(&self) -> tenure::AcquireAll {
        let [_, b, c] = self.names();
        self.lock(&self.here).and(b).and(c)
    }

    /// The name, and two that are taken with it.
    pub(super) fn names(&self) -> [String; 3] {
        ["", ".b", ".c"].map(|end| format!("{}{end}", self.name))
    }

    async fn theirs(&self, name: &str) -> Guard {
        (self.kind)(&self.there, name).ttl(LONG).acquire().await.expect("a free name")
    }
}

impl Parts {
    pub(super) fn guards(&self) -> impl Iterator<Item = &Guard> {
        self.mine.iter().chain(self.all.iter().flatten()).chain(&self.theirs)
    }

    /// Gives everything up, in every way there is.
    pub(super) async fn give_up(self, scene: &Scene) {
        if let Some(helper) = self.helper {
            helper.await.expect("the helper failed");
        }
        if let Some(lease) = self.lease {
            scene.there.release(&lease).await.expect("the store works again");
        }
        drop((self.mine, self.all, self.theirs));
    }
}

/// Holds what a guard claims against what the store keeps.
///
/// # Panics
/// If it claims more: a larger share, a longer lease, or a number that was not given.
pub(super) async fn claims_no_more(guard: &Guard, store: &dyn Store) {
    let (began, name, token) = (tenure::BootTime::now(), guard.name(), guard.token());
    let (state, share, fence, remaining) = (guard.state(), guard.share(), guard.fence(), guard.remaining());
    if state == State::Lost {
        return;
    }
    let entries = store.inspect(Some(name)).await.expect("the store works again");
    let took = tenure::BootTime::now().since(began);
    let held = entries.iter().flat_map(|entry| &entry.holders).find(|holder| holder.owner == *token);
    if held.is_none() && store.features().process_bound {
        // Not every database shows whose session it is. It knows that it is the owner's, in another process.
        let lease = Lease::new(name.clone(), token.clone(), share, remaining);
        let renewed = store.renew(&[lease]).await.remove(0);
        assert_eq!(renewed.expect_err("it is another process's").kind(), ErrorKind::Unsupported, "{guard:?}");
        return;
    }
    let Some(held) = held else { panic!("{guard:?} claims a name that the store keeps for others: {entries:?}") };
    assert!(held.share.weight() >= share.weight(), "{guard:?} claims {share:?} and has {held:?}");
    // The store counts in whole milliseconds.
    let kept = held.ttl.map(|ttl| ttl + took + Duration::from_millis(2));
    assert!(kept.is_none_or(|kept| kept >= remaining), "{guard:?} claims {remaining:?} and has {held:?}");
    let (claimed, given) = (fence.map(Fence::counter), held.fence.map(Fence::counter));
    assert!(given.is_none() || claimed <= given, "{guard:?} claims a number that was not given: {held:?}");
}

fn mutex(locks: &Locker, name: &str) -> Acquire {
    locks.mutex(name)
}

fn writer(locks: &Locker, name: &str) -> Acquire {
    locks.write(name)
}

fn reader(locks: &Locker, name: &str) -> Acquire {
    locks.read(name)
}

fn all_permits(locks: &Locker, name: &str) -> Acquire {
    locks.semaphore(name, 3).permits(3)
}

fn nothing(_: &Scene) -> BoxFuture<'_, Parts> {
    async { Parts::default() }.boxed()
}

fn mine(scene: &Scene) -> BoxFuture<'_, Parts> {
    async { Parts { mine: vec![scene.lock(&scene.here).acquire().await.expect("a free name")], ..Parts::default() } }.boxed()
}

fn twins(scene: &Scene) -> BoxFuture<'_, Parts> {
    async {
        let mut parts = mine(scene).await;
        parts.mine.push(parts.mine[0].reenter());
        parts
    }
    .boxed()
}

/// More than are released together before any of them has been begun.
fn many(scene: &Scene) -> BoxFuture<'_, Parts> {
    async {
        let mut parts = mine(scene).await;
        for i in 0..31 {
            let one = (scene.kind)(&scene.here, &format!("{}.{i}", scene.name)).ttl(LONG).acquire().await;
            parts.mine.push(one.expect("a free name"));
        }
        parts
    }
    .boxed()
}

fn theirs(scene: &Scene) -> BoxFuture<'_, Parts> {
    async { Parts { theirs: Some(scene.theirs(&scene.name).await), ..Parts::default() } }.boxed()
}

/// Held by others for a moment.
fn theirs_for_now(scene: &Scene) -> BoxFuture<'_, Parts> {
    async {
        let theirs = scene.theirs(&scene.name).await;
        let helper = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            drop(theirs.release().await);
        });
        Parts { helper: Some(helper), ..Parts::default() }
    }
    .boxed()
}

fn last_is_theirs(scene: &Scene) -> BoxFuture<'_, Parts> {
    async { Parts { theirs: Some(scene.theirs(&scene.names()[2]).await), ..Parts::default() } }.boxed()
}

fn all(scene: &Scene) -> BoxFuture<'_, Parts> {
    async { Parts { all: Some(scene.several().acquire().await.expect("free names")), ..Parts::default() } }.boxed()
}

fn passed_on(scene: &Scene) -> BoxFuture<'_, Parts> {
    async {
        let theirs = scene.theirs(&scene.name).await;
        Parts { lease: Some(theirs.into_lease()), ..Parts::default() }
    }
    .boxed()
}

macro_rules! call {
    ($name:literal, $when:literal, $kind:ident, $before:ident, |$scene:ident, $parts:ident| $run:expr $(, $flag:ident)*) => {
        Call {
            $($flag: true,)*
            before: $before,
            run: |$scene, $parts| async move { $run }.boxed(),
            ..Call { kind: $kind, ..Call::named($name, $when) }
        }
    };
}

impl Call {
    const fn named(name: &'static str, when: &'static str) -> Self {
        let run = |_: &Scene, _: &mut Parts| unreachable!("a call says what it does");
        Self { name, when, kind: mutex, shares: false, endless: false, elsewhere: false, before: nothing, run }
    }
}

async fn acquires(scene: &Scene, parts: &mut Parts) -> Result<(), Error> {
    parts.mine.push(scene.lock(&scene.here).acquire().await?);
    Ok(())
}

async fn tries(scene: &Scene, parts: &mut Parts) -> Result<(), Error> {
    parts.mine.extend(scene.lock(&scene.here).try_acquire().await?);
    Ok(())
}

async fn releases(parts: &mut Parts) -> Result<(), Error> {
    let guard = parts.mine.pop().expect("it is held");
    guard.release().await.map(drop)
}

async fn downgrades(parts: &mut Parts, share: Share) -> Result<(), Error> {
    parts.mine[0].downgrade(share).await
}

async fn acquires_all(scene: &Scene, parts: &mut Parts) -> Result<(), Error> {
    parts.all = Some(scene.several().acquire().await?);
    Ok(())
}

async fn tries_all(scene: &Scene, parts: &mut Parts) -> Result<(), Error> {
    parts.all = scene.several().try_acquire().await?;
    Ok(())
}

async fn adopts(scene: &Scene, parts: &mut Parts) -> Result<(), Error> {
    let lease = parts.lease.clone().expect("it was passed on");
    parts.mine.push(scene.here.adopt(&lease).await?);
    Ok(())
}

/// Every call, and the situations in which it asks the store for different things.
pub(super) fn calls() -> Vec<Call> {
    [acquisitions(), of_a_guard(), of_several(), of_a_locker()].into_iter().flatten().collect()
}

#[rustfmt::skip]
fn acquisitions() -> Vec<Call> {
    vec![
        call!("Acquire::acquire", "a free mutex", mutex, nothing, |scene, parts| acquires(scene, parts).await),
        call!("Acquire::acquire", "as a writer", writer, nothing, |scene, parts| acquires(scene, parts).await, shares),
        call!("Acquire::acquire", "as a reader", reader, nothing, |scene, parts| acquires(scene, parts).await, shares),
        call!("Acquire::acquire", "a busy mutex", mutex, theirs, |scene, parts| acquires(scene, parts).await, endless),
        call!("Acquire::acquire", "taken permits", all_permits, theirs, |scene, parts| acquires(scene, parts).await, shares, endless),
        call!("Acquire::acquire", "a mutex in use", mutex, theirs_for_now, |scene, parts| acquires(scene, parts).await),
        call!("Acquire::acquire", "after a writer", writer, theirs_for_now, |scene, parts| acquires(scene, parts).await, shares),
        call!("Acquire::try_acquire", "a free mutex", mutex, nothing, |scene, parts| tries(scene, parts).await),
        call!("Acquire::try_acquire", "a busy mutex", mutex, theirs, |scene, parts| tries(scene, parts).await),
        call!("AcquireAll::acquire", "free names", mutex, nothing, |scene, parts| acquires_all(scene, parts).await),
        call!("AcquireAll::acquire", "the last is busy", mutex, last_is_theirs, |scene, parts| acquires_all(scene, parts).await, endless),
        call!("AcquireAll::acquire", "the first in use", mutex, theirs_for_now, |scene, parts| acquires_all(scene, parts).await),
        call!("AcquireAll::try_acquire", "free names", mutex, nothing, |scene, parts| tries_all(scene, parts).await),
        call!("AcquireAll::try_acquire", "the last is busy", mutex, last_is_theirs, |scene, parts| tries_all(scene, parts).await),
    ]
}

#[rustfmt::skip]
fn of_a_guard() -> Vec<Call> {
    vec![
        call!("Guard::verify", "held", mutex, mine, |_scene, parts| parts.mine[0].verify().await),
        call!("Guard::run", "held", mutex, mine, |_scene, parts| parts.mine[0].run(tokio::time::sleep(STEP)).await),
        call!("Guard::extend", "by more", mutex, mine, |_scene, parts| parts.mine[0].extend(LONG * 2).await, elsewhere),
        call!("Guard::extend", "by less", writer, mine, |_scene, parts| parts.mine[0].extend(LONG / 2).await, shares, elsewhere),
        call!("Guard::downgrade", "a writer", writer, mine, |_scene, parts| downgrades(parts, Share::READ).await, shares),
        call!("Guard::downgrade", "a writer's twin", writer, twins, |_scene, parts| downgrades(parts, Share::READ).await, shares),
        call!("Guard::downgrade", "permits", all_permits, mine, |_scene, parts| downgrades(parts, Share::permits(1, 3)?).await, shares),
        call!("Guard::release", "a mutex", mutex, mine, |_scene, parts| releases(parts).await),
        call!("Guard::release", "a writer", writer, mine, |_scene, parts| releases(parts).await, shares),
        call!("Guard::release", "twins", mutex, twins, |_scene, parts| {
            releases(parts).await?;
            releases(parts).await
        }),
    ]
}

fn of_several() -> Vec<Call> {
    vec![
        call!("Guards::run", "held", mutex, all, |_scene, parts| match &parts.all {
            Some(all) => all.run(tokio::time::sleep(STEP)).await,
            None => unreachable!("they are held"),
        }),
        call!("Guards::release", "held", mutex, all, |_scene, parts| {
            let released = parts.all.take().expect("they are held").release().await;
            released.into_iter().try_for_each(|(_, released)| released.map(drop))
        }),
        call!("Guards::release_unused", "held", mutex, all, |_scene, parts| {
            let released = parts.all.take().expect("they are held").release_unused().await;
            released.into_iter().try_for_each(|(_, released)| released.map(drop))
        }),
    ]
}

#[rustfmt::skip]
fn of_a_locker() -> Vec<Call> {
    vec![
        call!("Locker::adopt", "a mutex", mutex, passed_on, |scene, parts| adopts(scene, parts).await),
        call!("Locker::adopt", "a writer", writer, passed_on, |scene, parts| adopts(scene, parts).await, shares),
        call!("Locker::renew", "a lease", mutex, passed_on, |scene, parts| {
            scene.here.renew(parts.lease.as_ref().expect("it was passed on")).await
        }),
        call!("Locker::release", "a lease", mutex, passed_on, |scene, parts| {
            scene.here.release(parts.lease.as_ref().expect("it was passed on")).await.map(drop)
        }),
        call!("Locker::release_lingering", "a lease", mutex, passed_on, |scene, parts| {
            // A pause that is asked for is left: without one nothing may be.
            let lease = parts.lease.as_ref().expect("it was passed on");
            scene.here.release_lingering(lease, Duration::ZERO).await.map(drop)
        }),
        call!("Locker::inspect", "held", mutex, mine, |scene, _parts| scene.here.inspect(&scene.name).await.map(drop)),
        call!("Locker::list", "held", mutex, mine, |scene, _parts| scene.here.list().await.map(drop)),
        call!("Locker::release_all", "of many", mutex, many, |scene, _parts| {
            let released = scene.here.release_all().await;
            released.into_iter().try_for_each(|(_, released)| released.map(drop))
        }),
        call!("Locker::flush_releases", "after a drop", mutex, mine, |scene, parts| {
            parts.mine.clear();
            scene.here.flush_releases().await;
            Ok(())
        }, elsewhere),
    ]
}
