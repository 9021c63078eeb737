//! The layer and its settings.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Error, Locker, Name};
use tower_layer::Layer;

use crate::key::Key;
use crate::policy::{Duplicate, Keyless, OnOutage, RefuseWith};
use crate::service::Lock;
use crate::shared::{Settings, Shared};
use crate::stats::Stats;

/// Longest key in bytes, unless [`LockLayerBuilder::max_key`] says another.
const MAX_KEY: usize = 256;
/// Shortest [`LockLayerBuilder::max_key`] with digests: there must be room for one.
const MIN_DIGESTED: usize = 40;
/// Most requests that ask the store at once, unless [`LockLayerBuilder::in_flight`] says another.
/// 128 calls of 20 ms each are 6,400 a second. A store that cannot answer 128 calls within the timeout
/// needs a smaller number.
const IN_FLIGHT: usize = 128;
/// Largest answer that is copied, unless [`LockLayerBuilder::copy_limit`] says another.
const COPY_LIMIT: usize = 1024 * 1024;

/// A tower layer that serves requests with the same key one at a time. Clones share their locks and
/// counters.
#[derive(Clone, Debug)]
pub struct LockLayer(Arc<Shared>);

impl LockLayer {
    /// Starts the settings of a layer.
    ///
    /// The names of its locks at the store of `locks` are `<prefix>:<key>`. Layers with the same
    /// prefix exclude each other's requests, in this process and in others. What happens while the
    /// store is gone has to be chosen.
    ///
    /// ```
    /// use tenure::{Locker, MemoryStore};
    /// use tenure_tower::{Duplicate, Key, LockLayer, OnOutage};
    ///
    /// # fn main() -> Result<(), tenure::Error> {
    /// let locks = Locker::new(MemoryStore::new());
    /// let layer = LockLayer::builder(locks, "order", Key::json("/order/id"), OnOutage::FailClosed)
    ///     .duplicate(Duplicate::Wait(std::time::Duration::from_secs(2)))
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    pub fn builder(locks: Locker, prefix: impl Into<String>, key: Key, on_outage: OnOutage) -> LockLayerBuilder {
        LockLayerBuilder(Settings {
            locks,
            prefix: prefix.into(),
            key,
            on_outage,
            duplicate: Duplicate::default(),
            refuse_with: RefuseWith::default(),
            keyless: Keyless::default(),
            ttl: None,
            cool_down: Duration::ZERO,
            max_hold: None,
            in_flight: IN_FLIGHT,
            max_key: MAX_KEY,
            digests: false,
            copy_limit: COPY_LIMIT,
        })
    }

    /// Returns the counters of this layer.
    pub fn stats(&self) -> Stats {
        self.0.stats.clone()
    }
}

impl<S> Layer<S> for LockLayer {
    type Service = Lock<S>;

    fn layer(&self, inner: S) -> Lock<S> {
        Lock::new(inner, Arc::clone(&self.0))
    }
}

/// Settings for a [`LockLayer`]; see [`LockLayer::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is made before build()"]
pub struct LockLayerBuilder(Settings);

impl LockLayerBuilder {
    /// Treatment of requests whose key is taken: [`Duplicate::Refuse`] by default.
    pub fn duplicate(mut self, duplicate: Duplicate) -> Self {
        self.0.duplicate = duplicate;
        self
    }

    /// Status of refused duplicates: 409 by default.
    pub fn refuse_with(mut self, refuse_with: RefuseWith) -> Self {
        self.0.refuse_with = refuse_with;
        self
    }

    /// Treatment of requests without a key: [`Keyless::Refuse`] by default.
    pub fn keyless(mut self, keyless: Keyless) -> Self {
        self.0.keyless = keyless;
        self
    }

    /// Keeps each key taken for at least this long, counted from its request. A repeat within that
    /// time is a duplicate, whether the first request succeeded or not.
    pub fn cool_down(mut self, cool_down: Duration) -> Self {
        self.0.cool_down = cool_down;
        self
    }

    /// Time to live of the leases, instead of the locker's. They are renewed while a request is
    /// served. After a crash a key stays taken for the ttl or the
    /// [cool-down](Self::cool_down), whichever is longer.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = Some(ttl);
        self
    }

    /// Ends a lease after this long, even if its renewals succeed. The handler is cancelled then,
    /// or the body broken off. It bounds handlers that hang, clients that read slowly, and hang-ups that
    /// nobody notices. Off by default. It must exceed the operation timeout by a quarter.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.0.max_hold = Some(max);
        self
    }

    /// Most requests that ask the store for their lock at once: 128 by default. A request that waits
    /// for a taken key does not count.
    ///
    /// Others wait for their turn, in the order in which they came. If it does not come within the
    /// operation timeout, or within the limit of [`Duplicate::Wait`], they are answered with 503 and
    /// `Retry-After`. So a burst is served as fast as the store answers. Raise it for a store that
    /// is far away, and lower it for one that answers fewer within its timeout.
    pub fn in_flight(mut self, requests: usize) -> Self {
        self.0.in_flight = requests;
        self
    }

    /// Longest key, in bytes: 256 by default. A longer one is answered with 400.
    pub fn max_key(mut self, bytes: usize) -> Self {
        self.0.max_key = bytes;
        self
    }

    /// Shortens keys above [`max_key`](Self::max_key) to a prefix and 128 bits of their SHA-256,
    /// instead of refusing them. Prefix and key together may have 1,024 bytes.
    pub fn digest_long_keys(mut self) -> Self {
        self.0.digests = true;
        self
    }

    /// Largest body of an answer that is copied for [`Duplicate::Join`], in bytes: 1 MiB by
    /// default. Requests that wait for a larger one are answered with 503.
    pub fn copy_limit(mut self, bytes: usize) -> Self {
        self.0.copy_limit = bytes;
        self
    }

    /// Checks the settings and makes the layer.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) for a prefix that is empty, too long, or has a colon
    /// or control characters, for a JSON pointer that is none, and for settings with which no lock
    /// could be taken. [`Unsupported`](tenure::ErrorKind::Unsupported) for a cool-down at a store whose
    /// leases end with their process.
    pub fn build(self) -> Result<LockLayer, Error> {
        let Self(settings) = self;
        settings.key.check()?;
        if settings.in_flight == 0 {
            return Err(Error::invalid("no request may ask the store").with_hint("set in_flight to 1 or more"));
        }
        if settings.max_key == 0 {
            return Err(Error::invalid("a max_key of 0 allows no key").with_hint("set max_key to 1 or more"));
        }
        let latest = settings.call_limit() * 5 / 4;
        if let Some(max) = settings.max_hold
            && max < latest
        {
            let what = format!("a max_hold of {max:?} may be over before its lease has come, which may take {latest:?}");
            return Err(Error::invalid(what).with_hint("raise max_hold, or lower the ttl or the operation timeout of the store"));
        }
        let (prefix, most) = (&settings.prefix, settings.locks.store().features().max_name);
        if prefix.is_empty() || prefix.contains(':') {
            let what = format!("the prefix {prefix:?} is empty or has a colon, which ends it in the names of locks");
            return Err(Error::invalid(what).with_hint("use a word of your own, such as order"));
        }
        if settings.digests && settings.max_key < MIN_DIGESTED {
            let what = format!("keys of {} bytes have no room for a digest", settings.max_key);
            return Err(Error::invalid(what).with_hint(format!("set max_key to {MIN_DIGESTED} or more")));
        }
        let shortest = prefix.len() + 1 + MIN_DIGESTED;
        if shortest > most {
            let what = format!("the prefix has {} bytes, and a name at this store may have {most}", prefix.len());
            return Err(Error::invalid(what).with_hint("use a shorter prefix"));
        }
        settings.acquire(&Name::new(format!("{prefix}:key"))?).check()?;
        Ok(LockLayer(Arc::new(Shared::new(settings))))
    }
}
