//! One exchange with a server, and who goes on with it if other nodes of a cluster have to answer.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tenure::Error;
use tokio::time::Instant;

use crate::transport::address::Address;
use crate::transport::commands::Commands;
use crate::transport::link::Link;
use crate::transport::reply::Answers;

/// Whether a pipeline that had no answer may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Running twice, or late, is as good as running once.
    Freely,
    /// Running late is not as good: send it again only if the first can no longer run. If it still can, the
    /// caller has to know.
    Settled,
    /// Running twice is not as good.
    Never,
}

/// An answered pipeline.
pub(crate) struct Exchange {
    /// The link that the answers came by.
    pub(crate) link: Arc<Link>,
    pub(crate) answers: Answers,
    /// The pipeline was sent once before, without an answer: its commands may have run twice.
    pub(crate) repeated: bool,
}

/// The other nodes of a cluster, as a connection to one of them knows them.
pub(crate) trait OtherNodes: Send + Sync {
    /// Sends those commands on whose answers name another node. All nodes at once: one that is silent
    /// holds up nothing at another.
    fn follow<'a>(
        &'a self,
        from: &'a Address,
        exchange: Exchange,
        commands: &'a Commands,
        repeat: Repeat,
        end: Instant,
    ) -> BoxFuture<'a, Result<Exchange, Error>>;

    /// Leaves another channel that nobody listens to any more. When they are many, all connections that have
    /// them are ended.
    fn leave_channel(&self);
}
