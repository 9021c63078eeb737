//! Conformance of the Redis store, in its native layout, on a real server behind a proxy that can fall silent; with functions and,
//! where the user may not load any, with scripts alone.

use crate::subject::Redis;

fn subject() -> Redis {
    Redis::start("", "", &[])
}

tenure_conformance::conformance!(subject);

/// A server that sentinels name: another source of connections. Sentinels do not take part in a fault, so none of them begins a failover.
mod by_sentinels {
    use super::*;

    fn subject() -> Redis {
        Redis::named_by_sentinels()
    }

    tenure_conformance::conformance!(subject, Variant);
}

/// A server with a replica, which confirms each grant and each renewal. What waits for that runs beside the cases of a variant.
mod confirmed {
    use tenure_conformance::{Tier, check};

    use super::*;

    fn subject() -> Redis {
        Redis::confirmed()
    }

    tenure_conformance::conformance!(subject, Variant);

    #[test]
    fn confirmed_calls_are_answered_as_others() {
        for case in [
            "a_downgrade_lets_readers_in",
            "a_late_renewal_does_not_resurrect",
            "a_repeated_acquire_never_shortens",
            "a_repeated_adoption_is_one_tenure",
            "a_repeated_linger_is_released",
            "a_served_waiter_finds_itself_granted",
            "adoption_swaps_owner_and_fence",
            "all_are_taken_in_one_step_or_none",
            "all_are_taken_once_however_often_it_is_asked",
            "all_shares_of_a_kind_are_taken_together",
            "another_type_is_refused_and_left_alone",
            "fences_rise_with_every_grant",
            "many_leases_are_answered_in_order",
            "many_shares_of_a_name_are_renewed_in_one_batch",
            "renewal_restarts_the_ttl",
            "two_kinds_at_a_name_are_a_mismatch",
            "what_was_sent_to_a_silent_store_is_cleared",
        ] {
            check(case, Tier::Whole, || Box::new(subject()));
        }
    }
}

mod by_script {
    use super::*;

    fn subject() -> Redis {
        let subject = super::subject();
        // A server that knows no such command has no functions either.
        let _ = subject.server.command(&["ACL", "SETUSER", "default", "-function"]);
        subject
    }

    tenure_conformance::conformance!(subject, Variant);
}
