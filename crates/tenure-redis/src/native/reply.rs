//! Reading the replies to the calls of a store.

use std::time::Duration;

use redis::{RedisError, RedisResult, Value};
use tenure::store::{AcquireReply, Busy, Notice, ReleaseReply, RenewReply, Request};
use tenure::{Error, ErrorKind, Fence, Holder, Lease, Name, Owner, Share};

use crate::transport::connection::Repeat;
use crate::transport::failure::{other_capacity, translate, unexpected};
use crate::transport::meanings::COUNTER_FIX;

/// The outcome of a request that was sent twice, the first time without an answer. If the owner
/// token is in place, and was supplied, it may be this request's or another client's.
pub(crate) fn check_repeated(request: &Request, answer: AcquireReply) -> Result<AcquireReply, Error> {
    match answer {
        AcquireReply::Busy(Busy { holder: Some(holder), .. }) if holder.owner == request.owner => {
            let what = "the first try had no answer, and the supplied owner token is in place: this client's or another's";
            Err(Error::unreachable(what).maybe_applied())
        }
        answer => Ok(answer),
    }
}

/// Whether a release may be sent twice. Not for a supplied owner token: between the two, another
/// client may take the name with the same token.
pub(crate) fn releases(lease: &Lease) -> Repeat {
    if lease.owner.is_generated() { Repeat::Freely } else { Repeat::Never }
}

/// The outcome of a release, from its answer and whether it may have run twice.
pub(crate) fn released(answer: (Value, bool)) -> Result<ReleaseReply, Error> {
    match answer {
        (Value::Int(1), _) => Ok(ReleaseReply::Released),
        (Value::Int(0), false) => Ok(ReleaseReply::NotHeld),
        // The first one may have released it, or it was lost before: nobody knows.
        (Value::Int(0), true) => {
            Err(Error::unreachable("the first release had no answer, and the second found nothing").maybe_applied())
        }
        (other, _) => Err(unexpected(format_args!("{other:?} to a release"))),
    }
}

/// Translates errors of commands if only those about the counter can meet another type of key.
pub(crate) fn about_counter(error: Error) -> Error {
    if error.kind() != ErrorKind::Mismatch {
        return error;
    }
    let refused = Error::refused("the grant counter cannot be used: it is another type of key").with_hint(COUNTER_FIX);
    if error.may_have_been_applied() { refused.maybe_applied() } else { refused }
}

/// The error of a script that was asked for `share` of `name`.
pub(crate) fn refusal(error: &RedisError, name: &Name, share: Share) -> Error {
    match other_capacity(error).and_then(|(capacity, _)| Share::from_parts(1, capacity)) {
        Some(known) => Error::other_kind(name, known.kind(), share.kind()),
        None => translate(error),
    }
}

pub(crate) fn renewals(answer: RedisResult<Value>, asked: usize) -> Result<Vec<RenewReply>, Error> {
    let renewal = |value: &Value| match value {
        Value::Int(1) => Ok(RenewReply::Renewed),
        Value::Int(0) => Ok(RenewReply::Gone),
        other => Err(unexpected(format_args!("{other:?} to a renewal"))),
    };
    match answer.map_err(|e| translate(&e))? {
        Value::Array(values) if values.len() == asked => values.iter().map(renewal).collect(),
        other => Err(unexpected(format_args!("{other:?} to {asked} renewals"))),
    }
}

/// Reads the reply of `acquire-all.lua`: a counter for each name, or none.
pub(crate) fn counters(answer: &Value, asked: usize) -> Result<Vec<u64>, Error> {
    match answer {
        Value::Array(values) if values.is_empty() || values.len() == asked => {
            values.iter().map(counter).collect::<Result<_, _>>().map_err(Error::maybe_applied)
        }
        other => Err(unexpected(format_args!("{other:?} to {asked} acquisitions at once"))),
    }
}

pub(crate) fn counter(value: &Value) -> Result<u64, Error> {
    let counter = match value {
        Value::Int(counter) => u64::try_from(*counter).ok(),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    counter.ok_or_else(|| unexpected(format_args!("{value:?} as a grant counter")).with_hint(COUNTER_FIX))
}

pub(crate) fn fence(counter: u64) -> Result<Fence, Error> {
    let exhausted = || Error::refused(format!("the grant counter stands at {counter}, beyond what a fence can be made of"));
    Fence::from_counter(counter).ok_or_else(|| exhausted().maybe_applied().with_hint(COUNTER_FIX))
}

pub(crate) fn holder(value: &[u8], ttl: i64, share: Share) -> Holder {
    let ttl = u64::try_from(ttl).ok().map(Duration::from_millis);
    Holder::new(Owner::from_bytes(value), share).with_ttl(ttl)
}

/// Reads the reply of `acquire.lua` about a busy name. It does not contain the poll interval.
pub(crate) fn busy(answer: &Value) -> Result<Busy, Error> {
    let odd = || unexpected(format_args!("{answer:?} to an acquisition"));
    let Value::Array(parts) = answer else { return Err(odd()) };
    let [Value::Int(0), grant_seq, Value::Int(position), held @ ..] = &parts[..] else { return Err(odd()) };
    let holder = match held {
        [] => None,
        [
            Value::BulkString(value),
            Value::Int(ttl),
            Value::Int(weight),
            Value::Int(capacity),
            Value::BulkString(number),
            Value::Int(age),
        ] => {
            let share = u32::try_from(*weight).ok().zip(u32::try_from(*capacity).ok());
            let share = share.and_then(|(weight, capacity)| Share::from_parts(weight, capacity));
            let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
            let age = u64::try_from(*age).ok().map(Duration::from_millis);
            Some(holder(value, *ttl, share.ok_or_else(odd)?).with_fence(number.and_then(Fence::from_counter)).with_age(age))
        }
        _ => return Err(odd()),
    };
    Ok(Busy::new(Duration::ZERO)
        .with_position(u32::try_from(*position).ok())
        .with_grant_seq(counter(grant_seq)?)
        .with_holder(holder))
}

/// Reads a push of `queue.lua`, `<counter>:<handoff_ttl in ms>`. Anything else is at least a reason
/// to poll.
pub(crate) fn notice(payload: &[u8], owner: &Owner) -> Notice {
    let granted = || {
        let (counter, handoff_ttl) = std::str::from_utf8(payload).ok()?.split_once(':')?;
        let (fence, handoff_ttl) =
            (Fence::from_counter(counter.parse().ok()?)?, Duration::from_millis(handoff_ttl.parse().ok()?));
        Some(Notice::Granted { owner: owner.clone(), fence, handoff_ttl })
    };
    granted().unwrap_or(Notice::Changed)
}
