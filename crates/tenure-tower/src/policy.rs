//! Choices of a layer: what happens to a second request, and what without a key or a store.

use std::time::Duration;

use http::StatusCode;

/// Treatment of a request whose key is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Duplicate {
    /// It is refused at once. See [`RefuseWith`] for the status.
    #[default]
    Refuse,
    /// It waits for the key, for this long at most, and is then served or refused.
    ///
    /// Waiters are served in order if the store has a queue. A wait rides out an outage of the
    /// store, up to its limit. Meanwhile up to 64 KiB of the body are read: HTTP servers notice that
    /// a client has hung up when they read. If more of the body is left, they notice when the handler
    /// reads it. Waiting requests use memory, so limit their number in front of this layer.
    Wait(Duration),
    /// It gets a copy of the first one's answer, if that is in this process and asks for the same:
    /// method, path and query. Else it is refused. A request with `Range`, `Upgrade` or one of the `If-*`
    /// headers joins nobody, and nobody joins it.
    ///
    /// The copy has the status, the headers, the body and its trailers. **Requests with the same
    /// key get the same answer, so the key has to name the user.** Bodies of requests and other headers,
    /// such as `Accept`, are not compared. The path is what this layer sees: inside axum's `nest` it is the rest, so give each
    /// nested router a layer of its own, with its own prefix. Put compression around this layer, not
    /// inside it.
    ///
    /// Requests that join never run a handler. They are answered with 503 and `Retry-After` if:
    /// - the first one fails, panics, hangs up or loses its lease before its answer was sent whole,
    /// - the answer is above [`copy_limit`](crate::LockLayerBuilder::copy_limit),
    /// - it does not end within 30 s: the first client may read it as slowly as it likes.
    Join,
}

/// Status of a refused duplicate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefuseWith {
    /// 409: the request conflicts with one that is in progress.
    #[default]
    Conflict,
    /// 429: the client asks too often.
    TooManyRequests,
}

impl RefuseWith {
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::Conflict => StatusCode::CONFLICT,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

/// Treatment of requests in an outage of the store.
///
/// In an outage a request cannot reach the store, hears that it cannot serve now, or gets no answer
/// within the [operation timeout](tenure::store::Features::limit). And the store
/// [serves](tenure::Locker::last_served) no other request of this locker meanwhile.
///
/// There is no default, because both are wrong for somebody. These are no outages, and are answered
/// with 503 in either case:
/// - The store *refuses*, by its password or permissions. That would last until somebody noticed.
/// - This process is overloaded: the store serves others, a handler blocks the runtime, or the pool
///   of the application lends no connection. Else a burst of requests would turn their locks off.
/// - Somebody keeps the row of the key locked in a database, or the embedded file. Or a database takes no more connections.
/// - A part of the store is gone, as one master of a cluster, and the rest serves.
/// - The file of an embedded store is damaged, read-only or on a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOutage {
    /// Refuses them with 503. For work that must not be done twice.
    FailClosed,
    /// Serves them **without a lock**, and without a fence, also while a handler has the same key. For
    /// work that is rather done twice than not at all. A handler that has a lease is cancelled when that
    /// ends, as ever. They are counted ([`Counts::failed_open`](crate::Counts::failed_open)), and a
    /// warning is logged at once and then each second.
    FailOpen,
}

/// Treatment of requests without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keyless {
    /// Refuses them with 400.
    #[default]
    Refuse,
    /// Serves them without a lock. A client that leaves its key out is then not held back by it.
    PassThrough,
}
