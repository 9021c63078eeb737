//! A try: all names or none, without a queue entry.

use futures_util::future::try_join_all;
use tenure::store::{Grant, Request};
use tenure::{Error, Name};
use tokio::time::Instant;

use crate::fresh::FreshLease;
use crate::keys::{Phase, seconds, span};
use crate::lease::revoke_later;
use crate::proto::{Compare, DeleteRangeRequest, Op, PutRequest};
use crate::queue::{Queue, Slot, fence};
use crate::seen::Seen;
use crate::store::EtcdStore;

/// Looks at names that change, before a place in the queue is taken.
const LOOKS: u32 = 2;

/// How a request is written.
enum Plan {
    /// As a new key, if no other was made since a revision.
    New { after: i64 },
    /// At the key that it has.
    Own(Slot),
}

impl EtcdStore {
    /// Asks for all or nothing, without a queue entry. `Err` has the queues of a request that is busy.
    pub(crate) async fn take(&self, requests: &[&Request], end: Instant) -> Result<Result<Vec<Grant>, Vec<Queue>>, Error> {
        let mut is_written = false;
        let taken = self.write_all(requests, &mut is_written, end).await;
        taken.map_err(|error| if is_written { error.maybe_applied() } else { error })
    }

    /// `is_written`: the keys were made, with leases that do not count.
    async fn write_all(
        &self,
        requests: &[&Request],
        is_written: &mut bool,
        end: Instant,
    ) -> Result<Result<Vec<Grant>, Vec<Queue>>, Error> {
        let (shared, layout) = (&self.shared, &self.shared.layout);
        let id = |request: &Request| (request.name.clone(), request.owner.clone());
        let fresh = |request: &&Request| FreshLease::grant(shared, id(request), seconds(request.ttl), end);
        let mut leases = try_join_all(requests.iter().map(fresh)).await?;
        let names: Vec<&Name> = requests.iter().map(|request| &request.name).collect();
        let mut plans: Vec<Plan> = requests.iter().map(|_| Plan::New { after: 0 }).collect();
        for looks in 0_u32.. {
            let (mut compare, mut puts, mut keys) = (Vec::new(), Vec::new(), Vec::new());
            for ((request, plan), lease) in requests.iter().zip(&plans).zip(&leases) {
                let key = match plan {
                    Plan::New { after } => {
                        let key = layout.key(&request.name, &request.owner);
                        compare.push(Compare::is_absent(&key));
                        compare.push(Compare::nothing_after(layout.range(&request.name), *after));
                        key
                    }
                    Plan::Own(slot) => {
                        compare.push(Compare::is_unchanged(&slot.key, slot.modified));
                        slot.key.clone()
                    }
                };
                let value = lease.value(Phase::Holds, request.share, &request.owner);
                puts.push(PutRequest { key: key.clone(), value: value.write(), lease: lease.id });
                keys.push(key);
            }
            leases.iter_mut().for_each(FreshLease::sent);
            // The names below one may change all the time.
            let answer = if looks >= LOOKS && plans.iter().all(|plan| matches!(plan, Plan::New { .. })) {
                self.place(requests, &names, puts, end).await?
            } else {
                shared.transact(compare, puts.into_iter().map(Op::Put).collect(), &names, end).await?
            };
            let queues = match answer {
                Ok(revision) if leases.iter().any(FreshLease::is_doubtful) => {
                    // Written again, with leases of now.
                    *is_written = true;
                    let fresh = |request: &&Request| FreshLease::new(shared, id(request), seconds(request.ttl), end);
                    let fresh = try_join_all(requests.iter().map(fresh)).await?;
                    for (((request, plan), lease), key) in requests.iter().zip(&mut plans).zip(&leases).zip(keys) {
                        let value = lease.value(Phase::Holds, request.share, &request.owner);
                        *plan = Plan::Own(Slot { key, value, lease: lease.id, modified: revision });
                    }
                    std::mem::replace(&mut leases, fresh).into_iter().for_each(FreshLease::keep);
                    continue;
                }
                Ok(revision) => {
                    let revisions = self.counted(requests, &leases, &keys, revision, end).await.map_err(Error::maybe_applied)?;
                    return Ok(Ok(self.taken(requests, plans, leases, keys, &revisions)));
                }
                Err(queues) => queues,
            };
            leases.iter_mut().for_each(FreshLease::unused);
            for (request, queue) in requests.iter().zip(&queues) {
                queue.check(request)?;
            }
            for (at, (request, queue)) in requests.iter().zip(&queues).enumerate() {
                let own = queue.held_by(&request.owner).filter(|_| request.generated);
                plans[at] = match own {
                    Some(slot) => Plan::Own(slot.clone()),
                    None if queue.has_room_for(request.share) && queue.slots.iter().all(|slot| slot.key != keys[at]) => {
                        Plan::New { after: queue.revision }
                    }
                    None => {
                        for (request, queue) in requests.iter().zip(&queues) {
                            self.clear(request, queue, end).await?;
                        }
                        leases.into_iter().for_each(FreshLease::spare);
                        return Ok(Err(queues));
                    }
                };
                // A lease does not get shorter.
                if let Some(slot) = own
                    && slot.value.ttl > leases[at].ttl
                {
                    leases[at] = FreshLease::grant(shared, id(request), slot.value.ttl, end).await?;
                }
            }
            if Instant::now() >= end {
                break;
            }
        }
        Err(Error::overloaded("the name changes too often to be taken in time"))
    }

    /// Makes the keys in any case, and deletes them if they do not hold all of the names at once.
    async fn place(
        &self,
        requests: &[&Request],
        names: &[&Name],
        puts: Vec<PutRequest>,
        end: Instant,
    ) -> Result<Result<i64, Vec<Queue>>, Error> {
        let keys: Vec<_> = puts.iter().map(|put| put.key.clone()).collect();
        let (joined, queues) = self.shared.join(puts, names, end).await?;
        let Some(revision) = joined else { return Ok(Err(queues)) };
        let holds =
            |(request, queue): (&&Request, &Queue)| queue.check(request).is_ok() && queue.held_by(&request.owner).is_some();
        if requests.iter().zip(&queues).all(holds) {
            return Ok(Ok(revision));
        }
        let compare = keys.iter().map(|key| Compare::is_unchanged(key, revision)).collect();
        let delete = keys.into_iter().map(|key| Op::Delete(DeleteRangeRequest { key })).collect();
        let left = self.shared.transact(compare, delete, &[], end).await.map_err(Error::maybe_applied)?;
        left.map_err(|_| Error::overloaded("a name was taken away as soon as it was had").maybe_applied())?;
        Ok(Err(queues.into_iter().zip(requests).map(|(queue, request)| queue.without(&request.owner)).collect()))
    }

    /// Deletes what an earlier call of this owner has left there by [`place`](Self::place).
    async fn clear(&self, request: &Request, queue: &Queue, end: Instant) -> Result<(), Error> {
        let waits = |slot: &&Slot| slot.value.phase == Phase::Holds && queue.held_by(&request.owner).is_none();
        if let Some(slot) = queue.find(&request.owner).filter(waits).filter(|_| request.generated) {
            // Who has changed it was the owner as well.
            let _deleted = self.delete(&request.name, &Seen::from(slot), end).await.map_err(Error::maybe_applied)?;
        }
        Ok(())
    }

    /// Gives each of several grants a revision of its own, by another write.
    async fn counted(
        &self,
        requests: &[&Request],
        leases: &[FreshLease],
        keys: &[Vec<u8>],
        revision: i64,
        end: Instant,
    ) -> Result<Vec<i64>, Error> {
        let each = requests.iter().zip(leases).zip(keys).enumerate().map(async |(at, ((request, lease), key))| {
            if at == 0 {
                return Ok(revision);
            }
            let value = lease.value(Phase::Holds, request.share, &request.owner);
            let put = PutRequest { key: key.clone(), value: value.write(), lease: lease.id };
            let compare = vec![Compare::is_unchanged(key, revision)];
            let lost = |_| Error::overloaded("a name was taken away as soon as it was had");
            self.shared.transact(compare, vec![Op::Put(put)], &[], end).await?.map_err(lost)
        });
        let mut revisions = Vec::with_capacity(requests.len());
        for one in each {
            revisions.push(one);
        }
        try_join_all(revisions).await
    }

    fn taken(
        &self,
        requests: &[&Request],
        plans: Vec<Plan>,
        leases: Vec<FreshLease>,
        keys: Vec<Vec<u8>>,
        revisions: &[i64],
    ) -> Vec<Grant> {
        let each = requests.iter().zip(plans).zip(leases).zip(keys).zip(revisions);
        each.map(|((((request, plan), lease), key), &revision)| {
            if let Plan::Own(slot) = plan {
                revoke_later(&self.shared.connection, slot.own_lease());
            }
            let grant = Grant::new(fence(revision), span(lease.ttl));
            let seen = lease.seen(key, revision);
            lease.keep();
            self.shared.remember((request.name.clone(), request.owner.clone()), seen);
            grant
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use tenure::store::{AcquireReply, Store as _};
    use tenure::{Owner, Share};
    use tenure_testkit::{EtcdCluster, Proxy};

    use super::*;
    use crate::Options;
    use crate::proto::Header;

    fn request(name: &str) -> Request {
        Request::new(Name::new(name).unwrap(), Owner::generate("test").unwrap(), Share::MUTEX, Duration::from_secs(30))
    }

    /// A place that was taken for a try is left if it does not hold, by the call or by the next one of that owner.
    #[tokio::test]
    async fn a_place_that_does_not_hold_is_left() {
        let url = EtcdCluster::shared().url(&EtcdCluster::fresh_prefix());
        let store = Options::parse(&url).unwrap().open().await.unwrap();
        let (held, late) = (request("x"), request("x"));
        let end = Instant::now() + Duration::from_secs(10);
        let put = async |request: &Request| {
            let id = (request.name.clone(), request.owner.clone());
            let mut lease = FreshLease::grant(&store.shared, id, 30, end).await.unwrap();
            let value = lease.value(Phase::Holds, request.share, &request.owner).write();
            let put = PutRequest { key: store.shared.layout.key(&request.name, &request.owner), value, lease: lease.id };
            lease.sent();
            lease.keep();
            put
        };
        let place = async |request: &Request| {
            let puts = vec![put(request).await];
            store.place(&[request], &[&request.name], puts, end).await.unwrap()
        };
        let waiters = async || store.inspect(None).await.unwrap().remove(0).waiters.len();
        assert!(place(&held).await.is_ok());
        let queues = place(&late).await.unwrap_err();
        assert_eq!(queues[0].slots.len(), 1, "it is busy by itself");
        assert_eq!(waiters().await, 0);
        // Its answer was lost before.
        let puts = vec![put(&late).await];
        assert!(store.shared.join(puts, &[&late.name], end).await.unwrap().0.is_some());
        assert_eq!(waiters().await, 1);
        assert!(matches!(store.acquire(&late).await.unwrap(), AcquireReply::Busy(_)));
        assert_eq!(waiters().await, 0);
    }

    async fn granted(store: &EtcdStore, request: &Request) {
        assert!(matches!(store.acquire(request).await.unwrap(), AcquireReply::Granted(_)));
    }

    /// Makes a request that is written with a kept lease, and then, because that one is doubtful, with another. The other is
    /// revoked meanwhile.
    async fn refused_at_the_second_write(first: &Request, then: Request) -> Error {
        let etcd = EtcdCluster::of(1).start();
        let proxy = Proxy::start_opaque(etcd.addr(0));
        let url = EtcdCluster::url_at(proxy.addr(), "a/") + "&timeout=20s";
        let store = Arc::new(Options::parse(&url).unwrap().open().await.unwrap());
        granted(&store, first).await;
        let kept = request("kept");
        granted(&store, &kept).await;
        store.release(&kept.lease(), Duration::ZERO).await.unwrap();
        let leases = || -> BTreeSet<String> { etcd.ctl(&["lease", "list"]).lines().skip(1).map(str::to_owned).collect() };
        let before = leases();
        // As if there had been an election.
        store.shared.saw(Some(&Header { raft_term: u64::MAX / 2, ..Header::default() }));
        // Longer, and the connection is taken for a dead one.
        proxy.delay(Duration::from_secs(1));
        let asked = tokio::spawn(async move { store.acquire(&then).await });
        let (second, looked) = loop {
            let looked = Instant::now();
            if let Some(id) = leases().difference(&before).next() {
                break (id.clone(), looked);
            }
            assert!(!asked.is_finished(), "it was written once, so nothing is tested");
        };
        // The write with it waits until it is revoked.
        proxy.hold_requests();
        let took = looked.elapsed();
        etcd.ctl(&["lease", "revoke", second.trim()]);
        proxy.release_requests();
        let answer = asked.await.unwrap();
        assert!(answer.is_err() || took < Duration::from_secs(1), "the write was held only after {took:?}");
        answer.expect_err("its lease was revoked")
    }

    /// The first write is there, and so is its lease.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_refused_second_write_takes_nothing_back() {
        let first = request("x");
        let adopts = request("x").with_from(Some(first.owner.clone()));
        for then in [request("y"), adopts] {
            let error = refused_at_the_second_write(&first, then).await;
            assert!(error.to_string().contains("lease not found"), "{error:?}");
            assert!(error.may_have_been_applied(), "it was written: {error:?}");
        }
    }
}
