//! Every common scheme under every common fault, in the model: what survives what.

use tenure_testkit::history::Rule;

use super::case::{Case, Setting};
use super::program::Scheme;
use super::schemes::{TTL, getset, php, row, setnx, token};

/// The result of a scheme under a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Nothing was found, in any order of steps.
    Holds,
    /// Two hold at once.
    Overlap,
    /// The name stays taken for ever.
    Stuck,
}

/// The faults, in words, in the order of the cells.
pub fn faults() -> Vec<&'static str> {
    COLUMNS.iter().map(|(words, _)| *words).collect()
}

/// Each scheme, in words, with what came of it under each fault.
pub fn matrix() -> Vec<(&'static str, Vec<Cell>)> {
    SCHEMES.iter().map(|scheme| (scheme.about, COLUMNS.iter().map(|(_, change)| cell(scheme, *change)).collect())).collect()
}

const SCHEMES: [Scheme; 10] = [
    setnx::SETNX_EXPIRE,
    setnx::SCRIPT,
    setnx::SET_NX,
    php::PHP,
    getset::GETSET,
    getset::GETSET_COMPARED,
    row::ROW,
    token::TWO_STEPS,
    token::POOLED_RELEASE,
    token::CAREFUL,
];

type Column = (&'static str, fn(&mut Setting));

const COLUMNS: [Column; 8] = [
    ("work outlasts the lease", |setting| setting.prompt = false),
    ("killed", |setting| setting.faults.crashes = 1),
    ("a reply is lost", |setting| setting.faults.lost_replies = 1),
    ("a command is lost", |setting| setting.faults.lost_requests = 1),
    ("a command is late", |setting| setting.faults.slow = 1),
    ("a host's clock is wrong", |setting| setting.skews = [0, TTL + 1, 0]),
    ("the server's clock jumps", |setting| setting.faults.jump = TTL + 1),
    ("the server loses its data", |setting| setting.faults.flushes = 1),
];

fn cell(scheme: &Scheme, change: fn(&mut Setting)) -> Cell {
    let found = |rule, also| {
        let case = Case::new("", "", *scheme, rule).within(2 * TTL - 1).also(also);
        case.with(|setting| setting.prompt = true).with(change).find().broken.is_some()
    };
    if found(Rule::Overlap, |_| true) {
        Cell::Overlap
    } else if found(Rule::Leak, |world| world.server.is_taken_forever()) {
        Cell::Stuck
    } else {
        Cell::Holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_survives_what() {
        use Cell::{Holds, Overlap, Stuck};
        let matrix = matrix();
        assert_eq!(matrix[0].1, [Overlap, Stuck, Stuck, Holds, Overlap, Holds, Overlap, Overlap], "{}", matrix[0].0);
        let careful = matrix.last().unwrap();
        assert_eq!(careful.1, [Holds, Holds, Holds, Holds, Holds, Holds, Overlap, Overlap], "{}", careful.0);
    }
}
