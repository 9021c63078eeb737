//! A try: all names or none, without a queue entry.

use futures_util::future::try_join_all;
use tenure::store::{Grant, Request};
use tenure::{Error, Name};
use tokio::time::Instant;

use crate::keys::{State, seconds, span};
use crate::lease::{FreshLease, revoke_later};
use crate::proto::{Compare, Op, PutRequest};
use crate::queue::{Queue, Slot, fence};
use crate::store::EtcdStore;

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
        let (shared, layout) = (&self.shared, &self.shared.layout);
        let id = |request: &Request| (request.name.clone(), request.owner.clone());
        let fresh = |request: &&Request| FreshLease::grant(shared, id(request), seconds(request.ttl), end);
        let mut leases = try_join_all(requests.iter().map(fresh)).await?;
        let names: Vec<&Name> = requests.iter().map(|request| &request.name).collect();
        let mut plans: Vec<Plan> = requests.iter().map(|_| Plan::New { after: 0 }).collect();
        loop {
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
                let value = lease.value(State::Holds, request.share, &request.owner);
                puts.push(Op::Put(PutRequest { key: key.clone(), value: value.write(), lease: lease.id }));
                keys.push(key);
            }
            leases.iter_mut().for_each(FreshLease::sent);
            let queues = match shared.transact(compare, puts, &names, end).await? {
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
                return Err(Error::unavailable("the name changes too often to be taken in time"));
            }
        }
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
            let value = lease.value(State::Holds, request.share, &request.owner);
            let put = PutRequest { key: key.clone(), value: value.write(), lease: lease.id };
            let compare = vec![Compare::is_unchanged(key, revision)];
            let lost = |_| Error::unavailable("a name was taken away as soon as it was had");
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
