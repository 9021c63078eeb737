//! The first contact with the servers of a quorum.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure::store::too_few;
use tenure::{Error, ErrorKind};
use tokio::time::{Instant, timeout_at};

use crate::native::node::{A_MOMENT, RedisNode};
use crate::transport::connection::FIRST_CONTACT;

/// Connects to the servers of a quorum, until a majority of them answers.
pub(crate) async fn first_contact(nodes: Vec<Arc<RedisNode>>) -> Result<(), Error> {
    let end = Instant::now() + FIRST_CONTACT;
    let mut first: FuturesUnordered<_> =
        nodes.into_iter().map(|node| async move { node.enter(end).await.map_err(|error| error.context(&node)) }).collect();
    let (all, mut answered, mut failures) = (first.len(), 0, Vec::new());
    let majority = all / 2 + 1;
    while answered < all {
        // Once there is a majority, the others have a moment. They go on connecting with the first call.
        let wait = if answered < majority { end } else { end.min(Instant::now() + A_MOMENT) };
        match timeout_at(wait, first.next()).await {
            Ok(Some(Ok(_))) => answered += 1,
            Ok(Some(Err(failed))) if failed.kind() == ErrorKind::Invalid => return Err(failed),
            Ok(Some(Err(failed))) => failures.push(failed),
            Ok(None) | Err(_) => break,
        }
    }
    if answered >= majority {
        return Ok(());
    }
    let what = format!("{answered} of the {all} nodes of the quorum answer, and {majority} are needed");
    Err(too_few(what, all - majority, first.len(), failures))
}
