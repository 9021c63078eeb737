//! Renewals: one transaction checks that the nodes of many leases are there.
//!
//! A read would not do. A server that is cut off from the others goes on answering, while the rest of
//! the ensemble ends its sessions.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tenure::store::RenewReply;
use tenure::{Error, Lease};
use tokio::time::{Instant, timeout_at};

use crate::entry::{Entry, Slot};
use crate::failure::{Failed, NO_NODE, no_answer, too_long};
use crate::inner::Inner;
use crate::nodes::Data;
use crate::session::{Reply, Session, answer};
use crate::wire::Frame;

/// Number of nodes that one transaction checks: a message may have 1 MiB.
const BATCH: usize = 256;

/// A lease that is here, and its place among all.
struct Asked<'a> {
    at: usize,
    lease: &'a Lease,
    entry: &'a Arc<Entry>,
    path: String,
}

impl Inner {
    /// Answers for leases, of which some are not here.
    pub(crate) async fn renew(&self, leases: &[Lease], slots: &[Option<Slot>], end: Instant) -> Vec<Result<RenewReply, Error>> {
        let mut answers: Vec<_> = leases.iter().map(|_| Ok(RenewReply::Gone)).collect();
        let mut sessions: HashMap<usize, Vec<Asked<'_>>> = HashMap::new();
        for (at, (lease, slot)) in leases.iter().zip(slots).enumerate() {
            let Some(entry) = slot.as_ref().map(|slot| &slot.entry) else { continue };
            let Some(path) = entry.held_node() else { continue };
            if lease.ttl > self.sessions.longest_ttl() {
                answers[at] = Err(too_long(self.sessions.longest_ttl()));
                continue;
            }
            sessions.entry(Arc::as_ptr(&entry.used.session).addr()).or_default().push(Asked { at, lease, entry, path });
        }
        let batches: Vec<_> = sessions.values().flat_map(|asked| asked.chunks(BATCH)).collect();
        let began = Instant::now();
        let renewals = batches.into_iter().map(|batch| async move {
            let answers = timeout_at(end, self.renew_batch(batch)).await;
            (batch, answers.unwrap_or_else(|_| vec![Err(no_answer(end.saturating_duration_since(began))); batch.len()]))
        });
        for (batch, renewed) in join_all(renewals).await {
            for (asked, answer) in batch.iter().zip(renewed) {
                answers[asked.at] = answer;
            }
        }
        answers
    }

    async fn renew_batch(&self, batch: &[Asked<'_>]) -> Vec<Result<RenewReply, Error>> {
        let session = batch[0].entry.session();
        if let Some(longest) = batch.iter().map(|asked| asked.lease.ttl).max() {
            self.lengthen(session, longest).await;
        }
        // So that it does not end here while the answer is under way.
        for asked in batch.iter().filter(|asked| self.sessions.keeps(session, asked.lease.ttl)) {
            asked.entry.extend(asked.lease.ttl);
        }
        let all = session.ask(Frame::check_all(batch.iter().map(|asked| asked.path.as_str()))).await;
        let done = all.and_then(|reply| Failed::of_transaction(&reply.body));
        let mut answers: Vec<_> = match done {
            Ok(()) => batch.iter().map(|asked| self.renewed(asked, Ok(()))).collect(),
            // One is gone or may not be read, and the answer does not say which. So each is asked for by itself.
            Err(Failed::Code(_)) => {
                let frames = batch.iter().map(|asked| Frame::check_all([asked.path.as_str()])).collect();
                let answers = batch.iter().zip(session.ask_each(frames).await);
                let is_there = |answer: Result<Reply, Failed>| answer.and_then(|reply| Failed::of_transaction(&reply.body));
                answers.map(|(asked, answer)| self.renewed(asked, is_there(answer))).collect()
            }
            Err(failed) => batch.iter().map(|asked| self.renewed(asked, Err(failed))).collect(),
        };
        let renewed = batch.iter().zip(&mut answers).filter(|(_, answer)| matches!(answer, Ok(RenewReply::Renewed)));
        for (asked, answer, failed) in show(renewed, session).await {
            // The next renewal writes it again.
            *answer = self.renewed(asked, Err(failed)).map_err(Error::maybe_applied);
        }
        answers
    }

    fn renewed(&self, asked: &Asked<'_>, is_there: Result<(), Failed>) -> Result<RenewReply, Error> {
        let (entry, ttl) = (asked.entry, asked.lease.ttl);
        match is_there {
            Ok(()) if !self.sessions.keeps(entry.session(), ttl) => Err(too_long(self.sessions.longest_ttl())),
            Ok(()) if entry.confirm(ttl) => Ok(RenewReply::Renewed),
            Ok(()) => Ok(RenewReply::Gone),
            // Nobody renews it in a session that is over, also if its node is there for a while.
            Err(failed) if matches!(failed, Failed::Code(NO_NODE) | Failed::Over) || entry.session().is_over() => {
                entry.end();
                self.forget(entry);
                Ok(RenewReply::Gone)
            }
            Err(failed) => Err(failed.error()),
        }
    }
}

/// Shows longer ttls to others, before a holder counts on them. Returns those whose write has no answer, and those that are gone.
async fn show<'a, T>(renewed: impl Iterator<Item = (&'a Asked<'a>, T)>, session: &Session) -> Vec<(&'a Asked<'a>, T, Failed)> {
    let mut all = Vec::new();
    for (asked, renewal) in renewed {
        let Asked { lease, entry, path, .. } = asked;
        let mut state = entry.state();
        // A downgrade that is under way shows it as well.
        if state.written < lease.ttl && state.share == lease.share {
            // Another renewal may be showing a longer one just now.
            let ttl = lease.ttl.max(state.sent);
            // The owner of now: writes are sent in the order of these locks.
            let data = Data { owner: state.owner.clone(), share: state.share, ttl };
            all.push((asked, renewal, ttl, state.write(session, path, &data)));
        }
    }
    let mut failures = Vec::new();
    for (asked, renewal, ttl, mut pending) in all {
        match answer(&mut pending).await {
            Ok(_) => asked.entry.state().shows(ttl),
            // The server refuses to write it. The lease is there all the same.
            Err(Failed::Code(code)) if code != NO_NODE => {}
            Err(failed) => failures.push((asked, renewal, failed)),
        }
    }
    failures
}
