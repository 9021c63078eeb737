//! Locks of different kinds at one name.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::store::{AcquireReply, ReleaseReply, Request};
use tenure::{ErrorKind, Kind, Share};

use super::shares::{holders, permits, reader, refusal, release, renewed, share, two, writer};
use super::steps::{LONG, granted, is_busy, joining, keeping, lease};
use crate::{Outcome, Subject};

/// These without semaphores, if the subject's cannot make room for another kind.
fn of_passing_kinds<const N: usize>(subject: &dyn Subject, requests: [Request; N]) -> Vec<Request> {
    let passes = |request: &Request| !(subject.semaphores_stay() && matches!(request.share.kind(), Kind::Semaphore(_)));
    requests.into_iter().filter(passes).collect()
}

/// Whichever was first, and whether it holds or lingers.
pub async fn two_kinds_at_a_name_are_a_mismatch(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let all = || [share(Share::MUTEX, LONG), reader(), writer(), permits(2, 5), permits(1, 3)];
    let kinds = || of_passing_kinds(subject, all());
    let counted = |request: &Request| request.share.counted().capacity();
    for (i, held) in kinds().into_iter().enumerate() {
        granted(&ours, &held).await;
        let can_linger = !ours.features().process_bound;
        for lingers in [false, true].into_iter().take(if can_linger { 2 } else { 1 }) {
            for other in all().into_iter().filter(|other| counted(other) != counted(&held)) {
                for other in [joining(&other), other] {
                    let error = refusal(&theirs, &held, &other).await;
                    assert_eq!(
                        (error.kind(), error.may_have_been_applied()),
                        (ErrorKind::Mismatch, false),
                        "{:?} after {:?}: {error}",
                        other.share,
                        held.share
                    );
                }
            }
            let entry = ours.inspect(Some(&held.name)).await.unwrap().pop().expect("it is held");
            assert_eq!((entry.holders.len(), entry.waiters.len()), (1, 0), "kind {i}, lingers: {lingers}");
            let linger = if lingers || !can_linger { Duration::ZERO } else { LONG };
            let owner = if lingers { held.owner.lingering() } else { held.owner.clone() };
            let given_up = lease(&held).with_owner(owner);
            assert_eq!(ours.release(&given_up, linger).await.unwrap(), ReleaseReply::Released);
        }
    }
    Ok(())
}

/// A mutex and a read/write lock of one name keep each other out, wait in one queue, and are served
/// in order.
pub async fn a_mutex_is_the_writer_of_a_read_write_lock(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let mutex = || share(Share::MUTEX, LONG);
    for (held, others) in [(mutex(), [reader(), writer()]), (reader(), [mutex(), writer()]), (writer(), [mutex(), reader()])] {
        granted(&ours, &held).await;
        for other in others {
            assert!(is_busy(&theirs, &other).await, "{:?} beside {:?}", other.share, held.share);
        }
        let changed = held.clone().with_share(if held.share == Share::MUTEX { Share::READ } else { Share::MUTEX });
        let error = refusal(&ours, &held, &changed).await;
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Invalid, false), "{error}");
        assert_eq!(holders(&theirs).await, BTreeMap::from([(held.owner.clone(), held.share)]));
        if ours.features().process_bound {
            release(&ours, &held).await;
            continue;
        }
        // A share that lingers keeps the same ones out.
        assert_eq!(ours.release(&lease(&held), LONG).await.unwrap(), ReleaseReply::Released);
        assert!(is_busy(&theirs, &mutex()).await && is_busy(&theirs, &writer()).await);
        release(&ours, &held.clone().with_owner(held.owner.lingering())).await;
    }
    if !ours.features().queue {
        return Ok(());
    }
    let (first, waiting) = (reader(), [mutex(), reader(), reader(), mutex(), writer(), mutex()].map(|request| joining(&request)));
    granted(&ours, &first).await;
    for (position, request) in waiting.iter().enumerate() {
        let reply = theirs.acquire(request).await.unwrap();
        let AcquireReply::Busy(busy) = reply else { panic!("{:?}: {reply:?}", request.share) };
        assert_eq!(busy.position, u32::try_from(position).ok(), "{:?}", request.share);
    }
    let mut before = vec![first];
    for together in [&waiting[..1], &waiting[1..3], &waiting[3..4], &waiting[4..5], &waiting[5..]] {
        for held in &before {
            release(&ours, held).await;
        }
        let expected = together.iter().map(|request| (request.owner.clone(), request.share)).collect();
        assert_eq!(holders(&ours).await, expected);
        for request in together {
            granted(&theirs, &keeping(request)).await;
            assert!(renewed(&theirs, request).await);
        }
        before = together.to_vec();
    }
    for held in &before {
        release(&ours, held).await;
    }
    assert!(ours.inspect(Some(&before[0].name)).await.unwrap().is_empty());
    Ok(())
}

/// A lease that was taken away is gone, whatever kind of lock has the name since: the owner is compared before the kind.
pub async fn a_lost_lease_is_gone_whatever_kind_came_after(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let kinds = || of_passing_kinds(subject, [share(Share::MUTEX, LONG), reader(), writer(), permits(1, 3), permits(1, 5)]);
    for held in kinds() {
        for taken in kinds().into_iter().filter(|taken| taken.share.capacity() != held.share.capacity()) {
            granted(&ours, &held).await;
            // A client that has the token breaks the lock.
            release(&theirs, &held).await;
            granted(&theirs, &taken).await;
            let (lost, kinds) = (lease(&held), format!("{:?}, then {:?}", held.share, taken.share));
            assert!(!renewed(&ours, &held).await, "{kinds}");
            for linger in [Duration::ZERO, LONG] {
                assert_eq!(ours.release(&lost, linger).await.unwrap(), ReleaseReply::NotHeld, "{kinds}");
            }
            assert_eq!(holders(&theirs).await, BTreeMap::from([(taken.owner.clone(), taken.share)]), "{kinds}");
            release(&theirs, &taken).await;
        }
    }
    Ok(())
}
