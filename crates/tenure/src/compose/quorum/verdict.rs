//! The verdict of all nodes on an acquisition, from their answers.

/// Numbers of nodes, by their answers. Their sum is that of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) granted: usize,
    pub(super) busy: usize,
    /// They do not vote.
    pub(super) refused: usize,
    pub(super) failed: usize,
    /// No answer yet.
    pub(super) pending: usize,
}

/// Outcome of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The answers that are missing decide it.
    Open,
    /// Enough nodes have granted.
    Granted,
    /// Others hold the name, or contend for it. Enough nodes have said so, whatever the rest say.
    Busy,
    /// Nodes that do not vote leave too few.
    NotVoting,
    /// Nodes that failed leave too few to grant or to be busy.
    Failed,
}

impl Count {
    /// The verdict of nodes of which `need` have to grant. It never changes once it is not open. Where the request is about a
    /// lease that is held, a node that is busy has never heard of the lease, and says nothing about the others.
    pub(super) const fn verdict(self, need: usize, is_held: bool) -> Verdict {
        let Self { granted, busy, refused, failed, pending } = self;
        let all = granted + busy + refused + failed + pending;
        let contend = if is_held { granted } else { granted + busy };
        if granted >= need {
            Verdict::Granted
        } else if granted + pending >= need {
            Verdict::Open
        } else if busy > all - need || contend >= need {
            Verdict::Busy
        } else if pending > 0 {
            Verdict::Open
        } else if contend + refused >= need {
            Verdict::NotVoting
        } else {
            Verdict::Failed
        }
    }

    /// No more answers come in time.
    pub(super) const fn ended(self) -> Self {
        Self { failed: self.failed + self.pending, pending: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Answer {
        Granted,
        Busy,
        Refused,
        Failed,
    }

    /// All nodes, those that have to grant, and whether the lease is held.
    const QUORUMS: [(u32, usize, bool); 6] =
        [(3, 2, false), (3, 2, true), (5, 3, false), (5, 3, true), (5, 4, false), (5, 4, true)];

    const ANSWERS: [Answer; 4] = [Answer::Granted, Answer::Busy, Answer::Refused, Answer::Failed];

    /// In other words: the best answer that `need` of the nodes give or surpass. Nodes that are busy are enough
    /// if without them nobody can be granted. About a lease that is held, theirs is the worst.
    fn plain(answers: &[Answer], need: usize, is_held: bool) -> Verdict {
        let mut best = answers.to_vec();
        best.sort_by_key(|answer| (is_held && *answer == Answer::Busy, *answer));
        let without_busy = answers.iter().filter(|answer| **answer != Answer::Busy).count();
        match best[need - 1] {
            Answer::Granted => Verdict::Granted,
            Answer::Busy => Verdict::Busy,
            _ if without_busy < need => Verdict::Busy,
            Answer::Refused => Verdict::NotVoting,
            Answer::Failed => Verdict::Failed,
        }
    }

    fn count(all: usize, answers: &[Answer]) -> Count {
        let number = |of| answers.iter().filter(|answer| **answer == of).count();
        let [granted, busy, refused, failed] = ANSWERS.map(number);
        Count { granted, busy, refused, failed, pending: all - answers.len() }
    }

    /// All answers in every order: the first verdict is the one that all of them together give, and no later one differs.
    #[test]
    fn every_combination_in_every_order_comes_to_what_a_majority_means() {
        for (all, need, is_held) in QUORUMS {
            for number in 0..4_usize.pow(all) {
                let answers: Vec<Answer> = (0..all).map(|at| ANSWERS[number / 4_usize.pow(at) % 4]).collect();
                let expected = plain(&answers, need, is_held);
                for heard in 0..=answers.len() {
                    let counted = count(answers.len(), &answers[..heard]);
                    let verdict = counted.verdict(need, is_held);
                    assert!(verdict == expected || verdict == Verdict::Open, "{verdict:?} of {heard} of {answers:?}");
                    assert!(heard < answers.len() || verdict == expected, "{verdict:?} of {answers:?}");
                    let silent = std::iter::repeat_n(Answer::Failed, answers.len() - heard);
                    let ended: Vec<Answer> = answers[..heard].iter().copied().chain(silent).collect();
                    assert_eq!(
                        counted.ended().verdict(need, is_held),
                        plain(&ended, need, is_held),
                        "no more than {heard} of {answers:?}"
                    );
                }
            }
        }
    }

    /// Who waits longer than this waits for a node that is away.
    #[test]
    fn nothing_is_waited_for_that_cannot_change_the_verdict() {
        for (all, need, is_held) in QUORUMS {
            for number in 0..5_usize.pow(all) {
                let answers: Vec<Answer> = (0..all).filter_map(|at| ANSWERS.get(number / 5_usize.pow(at) % 5).copied()).collect();
                let missing = all as usize - answers.len();
                let mut ends: Vec<Verdict> = Vec::new();
                for rest in 0..4_usize.pow(u32::try_from(missing).unwrap()) {
                    let rest = (0..missing).map(|at| ANSWERS[rest / 4_usize.pow(u32::try_from(at).unwrap()) % 4]);
                    ends.push(plain(&answers.iter().copied().chain(rest).collect::<Vec<_>>(), need, is_held));
                }
                // Of an outage, all errors are reported.
                let is_decided = ends.iter().all(|end| *end == ends[0]) && matches!(ends[0], Verdict::Granted | Verdict::Busy);
                let verdict = count(all as usize, &answers).verdict(need, is_held);
                assert!(!is_decided || verdict == ends[0], "{verdict:?} of {answers:?} of {all}, {need} needed");
            }
        }
    }
}
