//! The cases, and what they share.

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

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::{AcquireReply, Enqueue, Grant, ReleaseReply, RenewReply, Request, Store};
use tenure::{Error, ErrorKind, Fence, Lease, Locker, Name, Owner, ReleaseOutcome, Share};
use tokio::task::JoinError;

use crate::Tier;
pub(crate) use crate::{NotApplicable, Outcome, Plant, Subject};

/// Hands the list of all cases, by group, to another macro: `cases! { (path::of::the::macro) what to put in front }`.
#[doc(hidden)]
#[macro_export]
macro_rules! cases {
    (($($then:tt)+) $($before:tt)*) => {
        $($then)+! { $($before)*;
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

type Run = for<'a> fn(&'a dyn Subject) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// A case of the list.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    group: &'static str,
    pub(crate) run: Run,
}

/// Groups that test what the core makes of any store.
const OF_THE_CORE: [&str; 3] = ["cancelled", "guards", "waiting"];

/// The cases that a variant of a store may break: the keys, the answers, and when a lease ends.
const OF_A_VARIANT: [&str; 15] = [
    "a_free_name_is_granted_and_a_held_one_is_busy",
    "a_foreign_lock_and_ours_exclude_each_other",
    "a_late_owner_harms_nobody",
    "a_lease_ends_by_itself_and_not_before",
    "a_repeated_acquire_is_one_tenure",
    "a_repeated_release_frees_once",
    "a_silent_store_is_told_within_the_timeout",
    "every_held_name_is_listed",
    "fences_rise_under_contention",
    "it_tells_who_holds",
    "no_two_processes_are_inside_at_once",
    "odd_names_are_kept_apart",
    "permits_add_up_and_never_to_more",
    "readers_hold_together_and_a_writer_alone",
    "waiters_are_served_in_the_order_they_joined",
];

impl Case {
    pub(crate) fn runs_in(&self, tier: Tier) -> bool {
        match tier {
            Tier::Whole => true,
            Tier::Contract => !OF_THE_CORE.contains(&self.group),
            Tier::Variant => OF_A_VARIANT.contains(&self.name),
        }
    }
}

macro_rules! table {
    (; $($group:ident: [$($case:ident),* $(,)?])*) => {
        /// Their code is here, so that a program of tests has nothing to compile for each of them.
        pub(crate) const CASES: &[Case] = &[$($(
            Case { name: stringify!($case), group: stringify!($group), run: |subject| Box::pin($group::$case(subject)) },
        )*)*];
    };
}

cases! { (table) }

/// Long enough that a busy machine keeps it alive, short enough to wait for.
pub(crate) const TTL: Duration = Duration::from_millis(1_500);
/// For leases that must not end during the test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// For the `handoff_ttl` of waiters that come: only a hang lasts as long.
pub(crate) const HANDOFF_TTL: Duration = Duration::from_secs(10);
/// For waits whose end is an event: only a hang lasts as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// For the releases in the background. Where a call had no answer, they go on for as long as it may still be on its way; a lease
/// that nobody releases lives longer.
pub(crate) const CLEAN_UP: Duration = Duration::from_secs(45);

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
    request.clone().with_enqueue(Enqueue::Join { entry_ttl: LONG, handoff_ttl: HANDOFF_TTL })
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
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(grant) => grant,
        other => panic!("{:?} was to be granted: {other:?}", request.name),
    }
}

/// The answer to the renewal of one lease.
pub(crate) async fn renew(store: &dyn Store, lease: &Lease) -> RenewReply {
    let mut answers = store.renew(std::slice::from_ref(lease)).await;
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0).unwrap()
}

/// The error of a wait that came to its end. Any other is shown in its own words.
pub(crate) fn timed_out<T: Debug>(waited: Result<T, Error>) -> Error {
    let error = waited.unwrap_err();
    assert!(error.kind() == ErrorKind::TimedOut, "it is held: {error:?}");
    error
}

/// The outcome of a release that was answered.
pub(crate) fn outcome_of(released: Result<ReleaseOutcome, Error>) -> ReleaseOutcome {
    let answered = match released.unwrap() {
        ReleaseOutcome::Unknown { error, .. } => Err(error),
        outcome => Ok(outcome),
    };
    answered.unwrap()
}

/// The result of a task. Its panic goes on here, and is not printed again.
pub(crate) fn joined<T>(task: Result<T, JoinError>) -> T {
    task.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Whether a later grant has the larger number; where the store does not count, it has none.
pub(crate) fn rises(store: &dyn Store, later: Option<Fence>, earlier: Option<Fence>) -> bool {
    if store.features().fence { later > earlier } else { later.is_none() }
}

/// For how long the store keeps a lease of this ttl: some know no shorter ones than they have.
pub(crate) async fn kept(store: &dyn Store, ttl: Duration) -> Duration {
    let probe = request("probe", ttl);
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

/// Asks again until the request is granted.
pub(crate) async fn granted_at_last(store: &dyn Store, request: &Request) -> Grant {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match store.acquire(request).await.unwrap() {
            AcquireReply::Granted(grant) => return grant,
            AcquireReply::Busy(_) => {}
            AcquireReply::Refused { why, .. } => panic!("refused: {why}"),
        }
        assert!(tokio::time::Instant::now() < deadline, "{:?} is not free after {PATIENCE:?}", request.name);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The time from `since` until the request that asks again and again is granted.
pub(crate) async fn granted_after(store: &dyn Store, request: &Request, since: tenure::BootTime) -> Duration {
    granted_at_last(store, request).await;
    tenure::BootTime::now().since(since)
}

pub(crate) async fn locker(subject: &dyn Subject) -> Locker {
    Locker::builder(subject.store().await).label("conformance").ttl(TTL).build().unwrap()
}

/// A handle on a store whose leases may pass from one process to another, or to nobody.
pub(crate) async fn of_any_process(subject: &dyn Subject) -> Result<Arc<dyn Store>, NotApplicable> {
    let store = subject.store().await;
    if store.features().process_bound { Err(NotApplicable("its leases are bound to their process")) } else { Ok(store) }
}

/// A handle on a store that lists its names.
pub(crate) async fn listing(subject: &dyn Subject) -> Result<Arc<dyn Store>, NotApplicable> {
    let store = subject.store().await;
    match store.inspect(None).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => Err(NotApplicable("it does not list its names")),
        listed => {
            listed.unwrap();
            Ok(store)
        }
    }
}

/// The name is free and nothing of ours is left at it.
pub(crate) async fn assert_free(subject: &dyn Subject, text: &str) {
    let left = subject.store().await.inspect(Some(&name(text))).await.unwrap();
    assert!(left.is_empty(), "something was left behind: {left:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_in_the_list_and_every_tier_has_its_own() {
        const SOURCES: [(&str, &str); 13] = [
            ("basics", include_str!("cases/basics.rs")),
            ("cancelled", include_str!("cases/cancelled.rs")),
            ("repeats", include_str!("cases/repeats.rs")),
            ("expiry", include_str!("cases/expiry.rs")),
            ("fences", include_str!("cases/fences.rs")),
            ("guards", include_str!("cases/guards.rs")),
            ("waiting", include_str!("cases/waiting.rs")),
            ("processes", include_str!("cases/processes.rs")),
            ("shares", include_str!("cases/shares.rs")),
            ("several", include_str!("cases/several.rs")),
            ("dead", include_str!("cases/dead.rs")),
            ("queues", include_str!("cases/queues.rs")),
            ("foreign", include_str!("cases/foreign.rs")),
        ];
        for (group, source) in SOURCES {
            for case in source.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next()) {
                assert!(CASES.iter().any(|listed| (listed.group, listed.name) == (group, case)), "{case} is not in the list");
            }
        }
        let of = |tier| CASES.iter().filter(|case| case.runs_in(tier)).count();
        assert_eq!(of(Tier::Variant), OF_A_VARIANT.len());
        assert!(of(Tier::Variant) < of(Tier::Contract) && of(Tier::Contract) < of(Tier::Whole));
    }
}
