//! Renewal and release at a majority.

use std::sync::Arc;
use std::time::Duration;

use super::Quorum;
use super::round::Round;
use crate::store::{ReleaseReply, RenewReply, too_few};
use crate::{Error, ErrorKind, Lease, Name};

impl Quorum {
    pub(super) async fn keep(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(ttl) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        let until = self.until(ttl);
        let end = until.end;
        let asked: Arc<[Lease]> = leases.into();
        let wants: Vec<_> = leases.iter().map(|lease| self.want(lease)).collect();
        let mut round = Round::new(until);
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, asked, admission) = (Arc::clone(node), Arc::clone(&asked), Arc::clone(&self.admission));
            round.ask(at, async move {
                let answers = node.renew(&asked).await;
                // It may be one that does not vote, and nobody else may ask.
                if answers.iter().any(|answer| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)) {
                    drop(admission.begin(at));
                }
                Ok(answers)
            });
        }
        let needs: Vec<_> = leases.iter().map(|lease| self.need(lease.share)).collect();
        let mut tallies = vec![Tally::default(); leases.len()];
        while let Some((at, answers)) = round.next().await {
            for (tally, answer) in tallies.iter_mut().zip(answers.into_iter().flatten()) {
                match answer {
                    Ok(RenewReply::Renewed) => tally.yes += 1,
                    Ok(RenewReply::Gone) => tally.no.push(at),
                    Err(error) => tally.failures.push(error),
                }
            }
            let open = |(tally, need): (&Tally, &Result<usize, Error>)| {
                need.as_ref().is_ok_and(|need| !tally.is_decided(*need, self.nodes.len()))
            };
            if !tallies.iter().zip(&needs).any(open) {
                break;
            }
        }
        let renewed: Vec<bool> =
            tallies.iter().zip(&needs).map(|(tally, need)| need.as_ref().is_ok_and(|need| tally.yes >= *need)).collect();
        let plant = {
            let quorum = self.clone();
            move |lease: usize, at| quorum.planting(asked[lease].clone().into(), wants[lease].clone()).plant(at)
        };
        for (lease, tally) in tallies.iter().enumerate().filter(|(lease, _)| renewed[*lease]) {
            for at in &tally.no {
                plant(lease, *at);
            }
        }
        let answer = |((lease, tally), need): ((&Lease, Tally), Result<usize, Error>)| {
            let need = need?;
            if tally.yes >= need {
                return Ok(RenewReply::Renewed);
            }
            if self.nodes.len() - tally.no.len() < need {
                // The others keep it: its holder needs time to stop.
                return Ok(RenewReply::Gone);
            }
            Err(tally.error(&lease.name, need, self.nodes.len(), "renewed"))
        };
        let answers = leases.iter().zip(tallies).zip(needs).map(answer).collect();
        // The slowest node takes a lease again as well.
        let under_way = self.under_way.token();
        round.finish(end, move |at, answers| {
            let _under_way = &under_way;
            for (lease, answer) in answers.into_iter().flatten().enumerate() {
                if renewed[lease] && matches!(answer, Ok(RenewReply::Gone)) {
                    plant(lease, at);
                }
            }
        });
        answers
    }

    pub(super) async fn give_up(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let need = self.need(lease.share)?;
        let until = self.until(lease.ttl);
        let want = self.wanted.end(&lease.owner);
        let asked = Arc::new(lease.clone());
        let mut round = Round::new(until);
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, asked) = (Arc::clone(node), Arc::clone(&asked));
            round.ask(at, async move { node.release(&asked, linger).await });
        }
        let releasing = self.planting(asked, Some(want));
        let mut tally = Tally::default();
        while let Some((at, answer)) = round.next().await {
            releasing.released(at, &answer);
            match answer {
                Ok(ReleaseReply::Released) => tally.yes += 1,
                Ok(ReleaseReply::NotHeld) => tally.no.push(at),
                Err(error) => tally.failures.push(error),
            }
            if tally.is_decided(need, self.nodes.len()) {
                break;
            }
        }
        round.finish(until.end, move |at, answer| releasing.released(at, &answer));
        if tally.yes >= need {
            return Ok(ReleaseReply::Released);
        }
        if tally.no.len() > self.nodes.len() - need {
            return Ok(ReleaseReply::NotHeld);
        }
        Err(tally.error(&lease.name, need, self.nodes.len(), "released"))
    }
}

/// The answers about one lease.
#[derive(Clone, Debug, Default)]
struct Tally {
    yes: usize,
    /// The nodes that said no.
    no: Vec<usize>,
    failures: Vec<Error>,
}

impl Tally {
    fn is_decided(&self, need: usize, nodes: usize) -> bool {
        self.yes >= need || self.no.len() > nodes - need
    }

    fn error(self, name: &Name, need: usize, nodes: usize, what: &str) -> Error {
        let Self { yes, no, failures } = self;
        let what = format!("{name:?} was {what} at {yes} of {nodes} nodes, and {need} are needed");
        let silent = nodes - yes - no.len() - failures.len();
        too_few(what, nodes - need - no.len(), silent, failures).maybe_applied()
    }
}
