//! The libraries, each as its own documentation uses it.

use std::time::Duration;

use distributed_lock_core::error::LockError;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use rslock::{LockGuard, LockManager};
use tenure::{Guard, Locker, ReleaseOutcome};

use crate::Failure;
use crate::drive::{Case, Peer};

const TTL: Duration = Duration::from_secs(30);

/// tenure: fenced, in order, renewed.
#[derive(Clone)]
pub struct Tenure(Locker);

impl Peer for Tenure {
    type Held = Guard;

    fn runs(case: Case) -> Result<(), &'static str> {
        if case == Case::HandoverFast { Err("waiters are woken: there is no retry to set") } else { Ok(()) }
    }

    async fn connect(url: &str, _: Case) -> Result<Self, Failure> {
        if url.starts_with("quorum+") {
            // The servers are new, or were flushed: nothing holds there.
            tenure_redis::Options::parse(url)?.quorum().await?.admit().await?;
        }
        Ok(Self(tenure_redis::connect(url).await?))
    }

    async fn acquire(&self, name: &str) -> Result<Guard, Failure> {
        Ok(self.0.mutex(name).acquire().await?)
    }

    async fn release(held: Guard) -> Result<(), Failure> {
        match held.release().await? {
            ReleaseOutcome::Released => Ok(()),
            other => Err(format!("the release said {other:?}").into()),
        }
    }
}

/// rslock: `SET NX PX` and a script; polls.
#[derive(Clone)]
pub struct Rslock(LockManager);

impl Peer for Rslock {
    type Held = LockGuard;

    async fn connect(url: &str, case: Case) -> Result<Self, Failure> {
        let servers = match url.strip_prefix("quorum+redis://") {
            Some(hosts) => hosts.split(',').map(|host| format!("redis://{host}")).collect(),
            None => vec![url.to_owned()],
        };
        let mut manager = LockManager::new(servers);
        if case == Case::HandoverFast {
            // It waits a random whole number of milliseconds below this; with 1 it would not wait at all.
            manager.set_retry(u32::MAX, Duration::from_millis(2));
        }
        Ok(Self(manager))
    }

    async fn acquire(&self, name: &str) -> Result<LockGuard, Failure> {
        Ok(self.0.acquire(name.as_bytes(), TTL).await?)
    }

    async fn release(held: LockGuard) -> Result<(), Failure> {
        held.release().await;
        Ok(())
    }
}

/// distributed-lock: renewed; does not wait.
#[derive(Clone)]
pub struct DistributedLock(std::sync::Arc<RedisLockProvider>);

impl Peer for DistributedLock {
    type Held = RedisLockHandle;

    fn runs(case: Case) -> Result<(), &'static str> {
        if case == Case::Handover { Err("does not wait: acquire gives up at once, whatever its timeout") } else { Ok(()) }
    }

    async fn connect(url: &str, _: Case) -> Result<Self, Failure> {
        Ok(Self(std::sync::Arc::new(RedisLockProvider::builder().url(url).expiry(TTL).build().await?)))
    }

    async fn acquire(&self, name: &str) -> Result<RedisLockHandle, Failure> {
        loop {
            match self.0.create_lock(name).acquire(None).await {
                Ok(held) => return Ok(held),
                Err(LockError::Timeout(_)) => tokio::task::yield_now().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn release(held: RedisLockHandle) -> Result<(), Failure> {
        Ok(held.release().await?)
    }
}
