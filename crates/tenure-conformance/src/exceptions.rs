//! Groups of cases that some stores cannot run, for [`Subject::exceptions`](crate::Subject::exceptions).

/// Cases that need other processes: memory is reached by nobody else.
pub const ONE_PROCESS: &[&str] = &[
    "no_two_processes_are_inside_at_once",
    "a_killed_holder_frees_within_its_ttl",
    "a_stopped_holder_is_overtaken_and_knows_it",
    "a_killed_waiter_leaves_nothing",
    "a_lease_passes_between_processes",
];

/// Cases in which another client keeps a lock of its own at a name.
pub const NO_FOREIGN_LOCKS: &[&str] =
    &["a_foreign_lock_and_ours_exclude_each_other", "a_lock_without_expiry_is_told", "another_type_is_refused_and_left_alone"];

/// Cases in which the store falls silent.
pub const NEVER_SILENT: &[&str] = &["a_silent_store_is_told_within_the_timeout", "what_was_sent_to_a_silent_store_is_cleared"];

/// The case in which the store notifies a waiter.
pub const NO_PUSH: &[&str] = &["a_hand_over_is_pushed_to_the_one_that_is_served"];

/// Cases in which several names are taken in one step.
pub const ONE_BY_ONE: &[&str] = &[
    "all_are_taken_in_one_step_or_none",
    "all_are_taken_once_however_often_it_is_asked",
    "all_are_taken_when_the_last_has_ended",
    "all_does_not_overtake_who_waits",
    "all_shares_of_a_kind_are_taken_together",
    "all_is_refused_where_another_kind_is_waited_for",
    "all_takes_nothing_again_that_lingers",
];

/// Cases in which waiters queue at the store, which therefore serves them in order.
pub const NO_QUEUE: &[&str] = &[
    "a_dead_holder_is_followed_by_the_first_live_waiter",
    "a_given_value_never_queues",
    "a_hand_over_is_pushed_to_the_one_that_is_served",
    "a_heartbeat_keeps_a_place",
    "a_heartbeat_never_makes_a_place",
    "a_place_without_heartbeat_lapses",
    "a_released_place_is_used_up",
    "a_repeated_join_is_one_place",
    "a_served_waiter_finds_itself_granted",
    "a_served_waiter_that_never_comes_costs_its_claim",
    "a_stream_of_readers_does_not_starve_a_writer",
    "a_try_neither_queues_nor_overtakes",
    "an_adoption_leaves_the_queue_as_it_is",
    "dead_heads_in_a_row_are_passed",
    "dead_places_cost_the_living_little",
    "readers_at_the_head_are_served_together",
    "waiters_are_counted",
    "waiters_are_served_in_the_order_they_joined",
];

/// Cases in which later grants have larger fences.
pub const NO_FENCE: &[&str] =
    &["fences_rise_over_exclusive_grants", "fences_rise_under_contention", "fences_rise_with_every_grant"];

/// Cases for more than a mutex: without shares, a queue, fences, and several names in one step.
pub const MUTEXES_ONLY: &[&str] = &[
    "a_crashed_permit_returns",
    "a_dead_holder_is_followed_by_the_first_live_waiter",
    "a_dead_reader_ends_at_its_own_time",
    "a_downgrade_lets_readers_in",
    "a_downgrade_takes_nothing_that_is_not_held",
    "a_given_share_is_busy_for_its_second_user",
    "a_given_token_is_not_downgraded",
    "a_given_value_never_queues",
    "a_hand_over_is_pushed_to_the_one_that_is_served",
    "a_heartbeat_keeps_a_place",
    "a_heartbeat_never_makes_a_place",
    "a_lingering_share_is_nobodys_share",
    "a_lost_lease_is_gone_whatever_kind_came_after",
    "a_mutex_is_the_writer_of_a_read_write_lock",
    "a_place_without_heartbeat_lapses",
    "a_released_place_is_used_up",
    "a_repeated_join_is_one_place",
    "a_served_waiter_finds_itself_granted",
    "a_served_waiter_that_never_comes_costs_its_claim",
    "a_share_is_adopted",
    "a_share_is_given_up_once",
    "a_smaller_share_cannot_grow",
    "a_stream_of_readers_does_not_starve_a_writer",
    "a_try_neither_queues_nor_overtakes",
    "all_are_taken_in_one_step_or_none",
    "all_are_taken_once_however_often_it_is_asked",
    "all_are_taken_when_the_last_has_ended",
    "all_is_refused_where_another_kind_is_waited_for",
    "all_takes_nothing_again_that_lingers",
    "all_does_not_overtake_who_waits",
    "all_shares_of_a_kind_are_taken_together",
    "an_adoption_leaves_the_queue_as_it_is",
    "dead_heads_in_a_row_are_passed",
    "dead_places_cost_the_living_little",
    "dead_readers_keep_no_writer_out",
    "dead_readers_leave_no_kind_behind",
    "every_holder_of_a_name_is_listed",
    "fences_rise_over_exclusive_grants",
    "fences_rise_under_contention",
    "fences_rise_with_every_grant",
    "guards_of_every_kind",
    "many_shares_of_a_name_are_renewed_in_one_batch",
    "nobody_is_told_of_a_dead_holder",
    "odd_given_values_hold_shares",
    "permits_add_up_and_never_to_more",
    "readers_at_the_head_are_served_together",
    "readers_hold_together_and_a_writer_alone",
    "two_kinds_at_a_name_are_a_mismatch",
    "waiters_are_counted",
    "waiters_are_served_in_the_order_they_joined",
];

/// Cases in which a lease outlives its process, or passes to another, or a name stays taken by nobody.
pub const PROCESS_BOUND: &[&str] = &[
    "a_lease_passes_between_processes",
    "a_lease_passes_to_another",
    "a_lingering_name_can_be_broken",
    "a_lingering_name_is_nobodys",
    "a_lingering_share_is_nobodys_share",
    "a_repeated_linger_is_released",
    "a_shortest_hold_keeps_the_name",
];

/// Cases in which the store lists its names.
pub const NO_LIST: &[&str] = &["a_free_name_is_not_listed", "every_held_name_is_listed"];
