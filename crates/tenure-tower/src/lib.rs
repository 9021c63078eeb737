//! A [tower](tower_layer) layer that serves requests with the same key one at a time, in any number
//! of processes. For double clicks, retries of clients, and webhooks that arrive twice.
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Extension, Router, routing::post};
//! use http::HeaderName;
//! use tenure::{Fence, Locker, MemoryStore};
//! use tenure_tower::{Key, LockLayer, OnOutage};
//!
//! async fn sign_in_gift(fence: Option<Extension<Fence>>) -> &'static str {
//!     // Check the log, hand out the gift, write the log; the database compares the fence.
//!     "a gift"
//! }
//!
//! fn app(locks: Locker) -> Result<Router, tenure::Error> {
//!     let user = Key::header(HeaderName::from_static("x-user-id"));
//!     let once = LockLayer::builder(locks, "sign-in-gift", user, OnOutage::FailClosed)
//!         .cool_down(Duration::from_secs(5))
//!         .build()?;
//!     Ok(Router::new().route("/gift", post(sign_in_gift).layer(once)))
//! }
//! # drop(app(Locker::new(MemoryStore::new())).unwrap());
//! ```
//!
//! In production the locker is one of `tenure_redis::connect`, so that all processes of the service
//! share the locks.
//!
//! # Guarantees
//! - No two handlers run for the same key at once, as far as the [store](tenure::store) keeps its
//!   promise, unless [`OnOutage::FailOpen`] or [`Keyless::PassThrough`] serves one without a lock.
//!   A second request is [refused, waits, or gets a copy](Duplicate) of the first answer.
//! - The key is taken until the response *body* has ended, or the client has gone away. The last
//!   part of a body is sent once the release was answered. So a client that has the whole answer
//!   finds the key free. Exception: a body whose end nothing marks, neither length, trailers nor
//!   `is_end_stream`.
//! - A body that is there at once is read before the head of the answer is sent, up to 64 KiB. If that
//!   is all of it, a server sends the answer in one piece.
//!   **Serve larger answers with `TCP_NODELAY`**, and those that come in parts: without it many
//!   clients get the last part 40 ms later.
//! - An answer that switches protocols (101, a web socket) has no body. Its key is free at once, so work
//!   on the connection that goes on needs a lock of its own.
//! - If the lease is lost, the handler is cancelled: its future is dropped, and the answer is 503. A
//!   body that is being sent ends with an error. A loss that only the release finds out, as after
//!   `tenure break`, leaves the answer as it is.
//! - The [`Fence`](tenure::Fence) of the lease is an extension of the request. By it a database
//!   refuses the writes of a handler that was paused for too long.
//! - The key is free when the handler and its body have ended: by an answer, an error, a panic, or a
//!   client whose hang-up the server has noticed. A release that has no answer is repeated. If the
//!   process dies, the key is free after the ttl.
//! - The lease is renewed for as long as the handler runs. A server of HTTP/1.1 does not notice a
//!   hang-up while the handler leaves much of its body unread. So set a
//!   [longest hold](LockLayerBuilder::max_hold), which bounds all of this.
//! - A [cool-down](LockLayerBuilder::cool_down) is kept however the request ends. It needs a lease: a
//!   request that was served without one has none, and `tenure break` ends it.
//! - A request takes one lease at most.
//!
//! # Answers
//! Refusals are `application/problem+json` ([RFC 9457]) with a member `reason`. gRPC requests get
//! the status in brackets instead, without a body.
//!
//! | reason | status | meaning |
//! |---|---|---|
//! | `in-progress` | 409 or 429 (`ABORTED`, `RESOURCE_EXHAUSTED`) | another request has the key |
//! | `cool-down` | 409 or 429 (the same) | it was served a short time ago; `Retry-After` says when to repeat |
//! | `no-key` | 400 (`INVALID_ARGUMENT`) | the request has no key; see [`Keyless`] |
//! | `bad-key` | 400 (`INVALID_ARGUMENT`) | the key is too long, ambiguous, or has control characters |
//! | `body-too-large` | 413 (`RESOURCE_EXHAUSTED`) | the body is too large to look for the key |
//! | `body-unreadable` | 400 (`INVALID_ARGUMENT`) | the body broke off |
//! | `store-unavailable` | 503 (`UNAVAILABLE`) | an outage of the store, and [`OnOutage::FailClosed`] |
//! | `store-refused` | 503 (`UNAVAILABLE`) | the store refuses: a password, a permission, a key of another type |
//! | `overloaded` | 503 (`UNAVAILABLE`) | more requests than the store answers, or a row that somebody keeps locked; see [`in_flight`](LockLayerBuilder::in_flight) |
//! | `lock-lost` | 503 (`ABORTED`) | the lease was lost; the handler was cancelled |
//! | `first-failed` | 503 (`ABORTED`) | the answer to be [joined](Duplicate::Join) never came, or not whole |
//! | `first-too-large` | 503 (`ABORTED`) | the answer to be joined is too large to copy |
//!
//! # Keys are hostile
//! Clients choose keys. Therefore:
//! - The name at the store is `<prefix>:<key>`, and a prefix has no colon. So no key of one layer
//!   meets one of another. Keep other locks out of names that begin with a prefix.
//! - A key that is chosen by the client blocks everybody who has the same. With
//!   [`Duplicate::Join`] it even shares answers. Put the authenticated user into the key, as
//!   [`Key::from_parts`] can.
//! - Long keys are refused, or [digested](LockLayerBuilder::digest_long_keys). Control characters
//!   and repeated headers are refused.
//! - A client that reads slowly keeps its key taken. [`LockLayerBuilder::max_hold`] limits that: the
//!   key is free a ttl later. A body that nobody polls is not broken off before it is polled.
//!
//! [RFC 9457]: https://www.rfc-editor.org/rfc/rfc9457

// Users copy the examples, so an example must compile without a warning. It may leave a value
// unused.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

mod answer;
mod body;
mod frames;
mod future;
mod join;
mod key;
mod layer;
mod policy;
mod problem;
mod service;
mod shared;
mod stats;
mod traffic;

pub use crate::body::LockBody;
pub use crate::frames::RequestBody;
pub use crate::future::ResponseFuture;
pub use crate::key::Key;
pub use crate::layer::{LockLayer, LockLayerBuilder};
pub use crate::policy::{Duplicate, Keyless, OnOutage, RefuseWith};
pub use crate::service::Lock;
pub use crate::stats::{Counts, Stats};

/// An error of a body, as hyper, axum and tonic take it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
