//! The cases every store must pass, as a library.
//!
//! A store's tests say `tenure_testkit::conformance!(subject)`, where `subject` is a function that makes a [`Subject`], and
//! get one test for each case. A case that a store cannot run (no other process can reach a store in memory) must be declared in
//! [`Subject::exceptions`]; one that is declared and runs all the same fails, and so does one that cannot run undeclared.

pub mod basics;
mod calls;
pub mod cancelled;
pub mod dead;
pub mod expiry;
pub mod fences;
pub mod foreign;
pub mod guards;
pub mod processes;
pub mod queues;
pub mod repeats;
pub mod several;
pub mod shares;
pub mod waiting;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::{AcquireReply, Enqueue, Grant, ReleaseReply, Request, Store};
use tenure::{Fence, Lease, Locker, Name, Owner, Share};

/// A store under test: names of its own that nobody else uses.
#[async_trait]
pub trait Subject: Send + Sync {
    /// Another handle on the same names, as another process would have.
    async fn store(&self) -> Arc<dyn Store>;

    /// A command that runs [`worker::run`](crate::worker::run) on the same names.
    fn worker(&self) -> Result<Command, NotApplicable>;

    /// Puts something at a name that no tenure made.
    fn plant(&self, name: &Name, what: &Plant) -> Result<(), NotApplicable>;

    /// Makes the store silent, or lets it answer again.
    fn silence(&self, silent: bool) -> Result<(), NotApplicable>;

    /// The cases that cannot be run on this store.
    fn exceptions(&self) -> &[&'static str] {
        &[]
    }
}

/// What others leave at a name.
#[derive(Clone, Debug)]
pub enum Plant {
    /// A lock of a client that knows nothing of us.
    Value(&'static [u8], Option<Duration>),
    /// No lock at all.
    OtherType,
    /// Nothing any more.
    Nothing,
}

/// Why a case cannot be run on a store.
#[derive(Clone, Copy, Debug)]
pub struct NotApplicable(pub &'static str);

/// How a case ends when it does not panic.
pub type Outcome = Result<(), NotApplicable>;

/// One test for each case, on the subject that a function makes.
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
                a_waiter_gets_the_name, a_wait_ends_with_who_holds, a_cancelled_wait_leaves_nothing, a_future_dropped_at_any_await_leaves_nothing,
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
                two_kinds_at_a_name_are_a_mismatch, a_lost_lease_is_gone_whatever_kind_came_after,
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
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let subject = $subject();
                let outcome = $crate::conformance::$group::$case(&subject).await;
                $crate::conformance::settle(stringify!($case), &subject, outcome);
            }
        )*)*

        #[test]
        fn every_case_is_listed() {
            $crate::conformance::check_list(&[$($(stringify!($case)),*),*]);
        }
    };
}

/// Holds an outcome against what the subject declared.
#[doc(hidden)]
pub fn settle(case: &str, subject: &dyn Subject, outcome: Outcome) {
    let declared = subject.exceptions().contains(&case);
    match outcome {
        Ok(()) => assert!(!declared, "{case} is declared to be impossible on this store, and passes"),
        Err(NotApplicable(why)) if declared => println!("{case}: not on this store: {why}"),
        Err(NotApplicable(why)) => panic!("{case} cannot be run on this store and is not declared: {why}"),
    }
}

/// Fails when a case exists that the list forgot.
#[doc(hidden)]
pub fn check_list(listed: &[&str]) {
    const SOURCES: &[&str] = &[
        include_str!("conformance/basics.rs"),
        include_str!("conformance/cancelled.rs"),
        include_str!("conformance/repeats.rs"),
        include_str!("conformance/expiry.rs"),
        include_str!("conformance/fences.rs"),
        include_str!("conformance/guards.rs"),
        include_str!("conformance/waiting.rs"),
        include_str!("conformance/processes.rs"),
        include_str!("conformance/shares.rs"),
        include_str!("conformance/several.rs"),
        include_str!("conformance/dead.rs"),
        include_str!("conformance/queues.rs"),
        include_str!("conformance/foreign.rs"),
    ];
    let written =
        SOURCES.iter().flat_map(|source| source.lines()).filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next());
    for case in written {
        assert!(listed.contains(&case), "the case {case} is not in the list of conformance!");
    }
}

/// Long enough that a busy machine keeps it alive, short enough to wait for.
pub(crate) const TTL: Duration = Duration::from_millis(1_500);
/// For leases that must not end during the test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// For the claims of waiters that come: only a hang lasts as long.
pub(crate) const CLAIM: Duration = Duration::from_secs(10);
/// For waits whose end is an event: only a hang lasts as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn owner() -> Owner {
    Owner::generate("conformance").unwrap()
}

pub(crate) fn request(text: &str, ttl: Duration) -> Request {
    Request::new(name(text), owner(), Share::MUTEX, ttl)
}

/// The same with a place in the queue, for as long as the test may last.
pub(crate) fn joining(request: &Request) -> Request {
    request.clone().with_enqueue(Enqueue::Join { entry_ttl: LONG, handoff_ttl: CLAIM })
}

/// The heartbeat of a place.
pub(crate) fn keeping(request: &Request) -> Request {
    request.clone().with_enqueue(Enqueue::Heartbeat)
}

pub(crate) fn lease(request: &Request) -> Lease {
    request.lease()
}

/// The grant of a request that must be granted.
pub(crate) async fn granted(store: &dyn Store, request: &Request) -> Grant {
    match store.acquire(request).await {
        Ok(AcquireReply::Granted(grant)) => grant,
        other => panic!("{:?} was to be granted: {other:?}", request.name),
    }
}

/// Whether a later grant has the larger number; where the store does not count, it has none.
pub(crate) fn rises(store: &dyn Store, later: Option<Fence>, earlier: Option<Fence>) -> bool {
    if store.features().fence { later > earlier } else { later.is_none() }
}

/// For how long the store keeps a lease of [`TTL`]: some know no shorter ones than they have.
pub(crate) async fn kept(store: &dyn Store) -> Duration {
    let probe = request("probe", TTL);
    let kept = granted(store, &probe).await.ttl;
    assert_eq!(store.release(&lease(&probe), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    kept
}

pub(crate) async fn is_busy(store: &dyn Store, request: &Request) -> bool {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(_) => false,
        AcquireReply::Busy(_) => true,
        AcquireReply::Refused { why, .. } => panic!("refused: {why}"),
    }
}

/// Asks again until the request is granted; the time from `since` to the send of the request that was.
pub(crate) async fn granted_after(store: &dyn Store, request: &Request, since: tenure::BootTime) -> Duration {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if !is_busy(store, request).await {
            return tenure::BootTime::now().since(since);
        }
        assert!(tokio::time::Instant::now() < deadline, "{:?} is not free after {PATIENCE:?}", request.name);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn locker(subject: &dyn Subject) -> Locker {
    Locker::builder(subject.store().await).label("conformance").ttl(TTL).build().unwrap()
}

/// The name is free and nothing of ours is left at it.
pub(crate) async fn assert_free(subject: &dyn Subject, text: &str) {
    let left = subject.store().await.inspect(Some(&name(text))).await.unwrap();
    assert!(left.is_empty(), "something was left behind: {left:?}");
}
