//! The cases, and what they share.

pub mod basics;
mod calls;
pub mod cancelled;
pub mod dead;
pub mod expiry;
pub mod fences;
pub mod foreign;
pub mod guards;
pub mod kinds;
pub mod processes;
pub mod queues;
pub mod repeats;
pub mod several;
pub mod shares;
mod steps;
pub mod waiting;

use std::pin::Pin;

use crate::{Outcome, Subject, Tier};

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
                fences_rise_over_exclusive_grants,
                many_shares_of_a_name_are_renewed_in_one_batch, a_lingering_share_is_nobodys_share,
                a_share_is_adopted, every_holder_of_a_name_is_listed, a_share_is_given_up_once,
                a_given_share_is_busy_for_its_second_user, odd_given_values_hold_shares,
            ]
            kinds: [
                two_kinds_at_a_name_are_a_mismatch, a_mutex_is_the_writer_of_a_read_write_lock,
                a_lost_lease_is_gone_whatever_kind_came_after,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_in_the_list_and_every_tier_has_its_own() {
        const SOURCES: [(&str, &str); 14] = [
            ("basics", include_str!("cases/basics.rs")),
            ("cancelled", include_str!("cases/cancelled.rs")),
            ("repeats", include_str!("cases/repeats.rs")),
            ("expiry", include_str!("cases/expiry.rs")),
            ("fences", include_str!("cases/fences.rs")),
            ("guards", include_str!("cases/guards.rs")),
            ("waiting", include_str!("cases/waiting.rs")),
            ("processes", include_str!("cases/processes.rs")),
            ("shares", include_str!("cases/shares.rs")),
            ("kinds", include_str!("cases/kinds.rs")),
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
