//! One exchange with a server, and who goes on with it if other nodes of a cluster have to answer.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tenure::Error;
pub(crate) use tenure::store::cas::Repeat;
use tokio::time::Instant;

use crate::transport::address::Address;
use crate::transport::commands::Commands;
use crate::transport::link::Link;
use crate::transport::reply::Answers;

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
