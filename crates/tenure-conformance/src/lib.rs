//! Conformance tests for authors of stores: every store of tenure passes them.
//!
//! Make a [`Subject`] of your store, and call [`conformance!`](crate::conformance). Each case becomes a test. You need this crate and
//! `async-trait` as dev-dependencies. `examples/own-store.rs` is a store of about a hundred lines with its subject.
//!
//! ```
//! use std::sync::Arc;
//! use tenure::MemoryStore;
//! use tenure::store::Store;
//! use tenure_conformance::{Subject, exceptions};
//!
//! struct Memory(MemoryStore);
//!
//! #[async_trait::async_trait]
//! impl Subject for Memory {
//!     async fn store(&self) -> Arc<dyn Store> {
//!         Arc::new(self.0.clone())
//!     }
//!
//!     fn exceptions(&self) -> Vec<&'static str> {
//!         [exceptions::ONE_PROCESS, exceptions::NO_FOREIGN_LOCKS, exceptions::NEVER_SILENT].concat()
//!     }
//! }
//!
//! fn memory() -> Memory {
//!     Memory(MemoryStore::new())
//! }
//!
//! tenure_conformance::conformance!(memory);
//! ```
//!
//! # Exceptions
//! A case that a store cannot run ends as [`NotApplicable`]: its subject has no other processes, or the store keeps mutexes only. Such a
//! case has to be named in [`Subject::exceptions`]. It fails if it is not, so nothing is left out in silence. A case that is named
//! and passes fails as well, so the list does not outlive its reason. [`exceptions`] has the usual groups; add single cases to
//! them by name. A case that *fails* cannot be excused: it says that the store breaks the contract of [`Store`].
//!
//! # Faults
//! [`Faulty`] is a store around any other whose calls fail, hang or lose their answers where a test says so. [`Counter`] is a resource
//! without a lock of its own that shows when two holders were inside at once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::print_stdout,
    clippy::unused_async,
    clippy::future_not_send,
    reason = "the cases are tests: what is wrong stops the test that meets it"
)]

#[doc(hidden)]
pub mod cases;
pub mod exceptions;
pub mod faulty;
pub mod overlap;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::Store;
use tenure::{Fence, Lease, Name};

pub use crate::cases::cancelled::functions as cancelled_functions;
pub use crate::faulty::{Fate, Faulty, Operation};
pub use crate::overlap::Counter;

/// A store under test. Every subject has names of its own, which nobody else uses.
#[async_trait]
pub trait Subject: Send + Sync {
    /// Another handle on the same names, as another process would have.
    async fn store(&self) -> Arc<dyn Store>;

    /// Another process that uses the same names. Without one the cases of [`exceptions::ONE_PROCESS`] cannot be run.
    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Err(NotApplicable("its subject starts no other processes"))
    }

    /// Puts something at a name that no tenure made. Without it the cases of [`exceptions::NO_FOREIGN_LOCKS`] cannot be run.
    fn plant(&self, _name: &Name, _what: &Plant) -> Result<(), NotApplicable> {
        Err(NotApplicable("nobody else keeps locks there"))
    }

    /// Makes the store silent, or lets it answer again. Without it the cases of [`exceptions::NEVER_SILENT`] cannot be run.
    fn silence(&self, _silent: bool) -> Result<(), NotApplicable> {
        Err(NotApplicable("it has no link that falls silent"))
    }

    /// Whether a semaphore stays at its name when nobody holds any of its permits, as an object of its own. Then the cases in which
    /// names change their kind leave semaphores out.
    fn semaphores_stay(&self) -> bool {
        false
    }

    /// How much longer than its ttl the store may keep a lease or a queue entry. Not zero for one whose clock has whole seconds.
    fn overtime(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the store refuses this name as invalid, because of the layout that it shares with other clients.
    fn refuses(&self, _name: &str) -> bool {
        false
    }

    /// The cases that cannot be run on this store.
    fn exceptions(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// A holder in a process of its own, on the names of a [`Subject`]. It is killed when it is dropped.
///
/// All locks are mutexes, and one is asked for or held at a time. A call that waits for its outcome fails the test after a while.
pub trait Process: Send {
    /// Takes `name`, waiting for it, and renews it from then on.
    fn acquire(&mut self, name: &str, ttl: Duration) -> Option<Fence>;

    /// Begins to wait for `name`.
    fn begin_acquire(&mut self, name: &str, ttl: Duration);

    /// Gives up its guard and returns the lease, which stays.
    fn hand_over(&mut self) -> Lease;

    /// Takes over a lease that another gave up so.
    fn adopt(&mut self, lease: &Lease) -> Option<Fence>;

    /// Releases what it holds.
    fn release(&mut self);

    /// Whether its guard says that the lease is lost.
    fn is_lost(&mut self) -> bool;

    /// Begins to take and release `name` so many times, each time with a visit to the [`Counter`] in `dir`.
    fn begin_visits(&mut self, name: &str, dir: &Path, times: u64);

    /// Waits until all visits were made.
    fn finish_visits(&mut self);

    /// Stops it as `SIGSTOP` does, or lets it go on.
    fn stop(&mut self, stopped: bool);

    /// Kills it as `SIGKILL` does, and waits for its end.
    fn kill(&mut self);
}

/// A value that another client leaves at a name.
#[derive(Clone, Debug)]
pub enum Plant {
    /// A lock of a client that knows nothing of us, with its ttl if it has one.
    Value(&'static [u8], Option<Duration>),
    /// No lock at all.
    OtherType,
    /// Nothing any more.
    Nothing,
}

/// Why a case cannot be run on a store.
#[derive(Clone, Copy, Debug)]
pub struct NotApplicable(pub &'static str);

/// How a case ends if it does not panic.
pub type Outcome = Result<(), NotApplicable>;

/// Makes a test of each case, on the [`Subject`] that a function makes.
#[macro_export]
macro_rules! conformance {
    ($subject:path) => {
        $crate::conformance_tests! { $subject;
            basics: [
                a_free_name_is_granted_and_a_held_one_is_busy, it_tells_who_holds, odd_names_are_kept_apart,
                a_free_name_is_not_listed, every_held_name_is_listed,
            ]
            repeats: [
                a_repeated_acquire_is_one_tenure, a_repeated_acquire_never_shortens, a_given_token_is_busy_for_its_second_user,
                a_repeated_renewal_is_harmless, a_repeated_release_frees_once, a_repeated_linger_is_released,
                a_repeated_adoption_is_one_tenure,
            ]
            expiry: [
                a_lease_ends_by_itself_and_not_before, renewal_restarts_the_ttl, renewal_never_shortens, many_leases_are_answered_in_order,
                a_late_renewal_does_not_resurrect, a_late_owner_harms_nobody, a_lingering_name_is_nobodys,
                a_lingering_name_can_be_broken,
            ]
            fences: [
                fences_rise_with_every_grant, fences_rise_under_contention, adoption_swaps_owner_and_fence, one_of_two_adopters_wins,
            ]
            guards: [
                a_guard_renews_itself, a_fixed_lease_ends_before_the_store_frees_it, a_broken_lock_is_told_at_the_next_renewal,
                verify_asks_the_store, work_stops_when_the_tenure_is_lost, a_lease_is_extended, a_longest_hold_ends_it,
                a_shortest_hold_keeps_the_name, a_lease_passes_to_another, everything_is_given_up_at_once, settings_that_cannot_work_are_refused,
                guards_of_every_kind, a_given_token_is_not_downgraded, several_names_are_all_or_nothing, opposite_orders_never_deadlock,
                a_cancelled_wait_for_several_leaves_nothing,
            ]
            cancelled: [
                a_call_dropped_at_any_await_leaves_the_truth, a_call_without_an_answer_leaves_the_truth,
                a_blocking_call_that_times_out_leaves_nothing,
            ]
            waiting: [
                a_waiter_gets_the_name, leaders_follow_one_another, a_wait_ends_with_who_holds, a_cancelled_wait_leaves_nothing, a_future_dropped_at_any_await_leaves_nothing,
                a_wait_dropped_at_any_await_leaves_nothing,
                a_dropped_guard_frees, a_guard_dropped_outside_a_runtime_frees, a_guard_outlives_its_runtime_in_peace, many_tasks_take_turns,
                locks_without_a_runtime,
            ]
            processes: [
                no_two_processes_are_inside_at_once, a_killed_holder_frees_within_its_ttl, a_stopped_holder_is_overtaken_and_knows_it,
                a_killed_waiter_leaves_nothing, a_lease_passes_between_processes,
            ]
            shares: [
                readers_hold_together_and_a_writer_alone, permits_add_up_and_never_to_more,
                a_stream_of_readers_does_not_starve_a_writer, a_downgrade_lets_readers_in,
                a_downgrade_takes_nothing_that_is_not_held,
                a_smaller_share_cannot_grow, a_dead_reader_ends_at_its_own_time, a_crashed_permit_returns,
                two_kinds_at_a_name_are_a_mismatch, a_mutex_is_the_writer_of_a_read_write_lock,
                a_lost_lease_is_gone_whatever_kind_came_after,
                fences_rise_over_exclusive_grants,
                many_shares_of_a_name_are_renewed_in_one_batch, a_lingering_share_is_nobodys_share,
                a_share_is_adopted, every_holder_of_a_name_is_listed, a_share_is_given_up_once,
                a_given_share_is_busy_for_its_second_user, odd_given_values_hold_shares,
            ]
            several: [
                all_are_taken_in_one_step_or_none, all_are_taken_once_however_often_it_is_asked, all_are_taken_when_the_last_has_ended,
                all_does_not_overtake_who_waits, all_shares_of_a_kind_are_taken_together,
                all_is_refused_where_another_kind_is_waited_for, all_takes_nothing_again_that_lingers,
            ]
            dead: [
                dead_readers_keep_no_writer_out, dead_readers_leave_no_kind_behind, nobody_is_told_of_a_dead_holder,
                dead_places_cost_the_living_little,
            ]
            queues: [
                waiters_are_served_in_the_order_they_joined, a_try_neither_queues_nor_overtakes,
                a_given_value_never_queues, a_heartbeat_keeps_a_place, a_place_without_heartbeat_lapses,
                a_heartbeat_never_makes_a_place, a_released_place_is_used_up,
                a_served_waiter_that_never_comes_costs_its_claim, dead_heads_in_a_row_are_passed,
                a_served_waiter_finds_itself_granted, a_hand_over_is_pushed_to_the_one_that_is_served,
                a_dead_holder_is_followed_by_the_first_live_waiter, a_repeated_join_is_one_place,
                readers_at_the_head_are_served_together, waiters_are_counted,
                an_adoption_leaves_the_queue_as_it_is,
            ]
            foreign: [
                a_foreign_lock_and_ours_exclude_each_other, a_lock_without_expiry_is_told, another_type_is_refused_and_left_alone,
                a_silent_store_is_told_within_the_timeout, what_was_sent_to_a_silent_store_is_cleared,
            ]
        }
    };
}

/// The expansion of [`conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($subject:path; $($group:ident: [$($case:ident),* $(,)?])*) => {
        $($(
            #[test]
            fn $case() {
                $crate::check(stringify!($case), $subject, async |subject| $crate::cases::$group::$case(subject).await);
            }
        )*)*

        #[test]
        fn every_case_is_listed() {
            $crate::check_list(&[$($(stringify!($case)),*),*]);
        }
    };
}

/// Runs a case, and holds its outcome against what the subject declared.
#[doc(hidden)]
pub fn check<S: Subject>(case: &str, make: impl FnOnce() -> S, run: impl AsyncFnOnce(&S) -> Outcome) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let subject = make();
        let declared = subject.exceptions().contains(&case);
        match run(&subject).await {
            Ok(()) => assert!(!declared, "{case} is declared to be impossible on this store, and passes"),
            Err(NotApplicable(why)) if declared => println!("{case}: not on this store: {why}"),
            Err(NotApplicable(why)) => panic!("{case} cannot be run on this store and is not declared: {why}"),
        }
    });
}

/// Fails if the list of [`conformance!`] forgot a case.
#[doc(hidden)]
pub fn check_list(listed: &[&str]) {
    const SOURCES: [&str; 13] = [
        include_str!("cases/basics.rs"),
        include_str!("cases/cancelled.rs"),
        include_str!("cases/repeats.rs"),
        include_str!("cases/expiry.rs"),
        include_str!("cases/fences.rs"),
        include_str!("cases/guards.rs"),
        include_str!("cases/waiting.rs"),
        include_str!("cases/processes.rs"),
        include_str!("cases/shares.rs"),
        include_str!("cases/several.rs"),
        include_str!("cases/dead.rs"),
        include_str!("cases/queues.rs"),
        include_str!("cases/foreign.rs"),
    ];
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    for case in lines.filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next()) {
        assert!(listed.contains(&case), "the case {case} is not in the list of conformance!");
    }
}
