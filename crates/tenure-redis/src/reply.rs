//! Reading what the server answered.

use std::time::Duration;

use redis::{RedisResult, Value};
use tenure::store::{Busy, Notice, RenewReply};
use tenure::{Error, Fence, Holder, Owner, Share};

use crate::failure::{COUNTER_FIX, translate, unexpected};

/// The results of `MULTI, a, b, c, EXEC`.
pub(crate) fn transaction(answers: Vec<RedisResult<Value>>) -> Result<[Value; 3], Error> {
    let results = executed(answers)?.ok_or_else(|| unexpected("nil to EXEC"))?;
    results.try_into().map_err(|_| unexpected("a transaction with too few results"))
}

/// The results of `MULTI, ..., EXEC`; none where what was watched has changed. Where one failed, what the others did stands: the error
/// says so.
pub(crate) fn executed(mut queued: Vec<RedisResult<Value>>) -> Result<Option<Vec<Value>>, Error> {
    let executed = queued.pop();
    // What was refused when it was queued says why; EXEC then only says that something was.
    if let Some(error) = queued.iter().find_map(|answer| answer.as_ref().err()) {
        let error = translate(error);
        // Where MULTI itself was refused, the commands behind it ran as they came.
        let ran_alone = matches!(queued.first(), Some(Err(_))) && queued.get(1).is_some_and(Result::is_ok);
        return Err(if ran_alone { error.maybe_applied() } else { error });
    }
    match executed {
        Some(Ok(Value::Array(results))) => {
            let applied = matches!(results.first(), Some(first) if !matches!(first, Value::Nil | Value::ServerError(_)));
            let results: RedisResult<Vec<Value>> = results.into_iter().map(Value::extract_error).collect();
            match results {
                Ok(results) => Ok(Some(results)),
                Err(error) if applied => Err(translate(&error).maybe_applied()),
                Err(error) => Err(translate(&error)),
            }
        }
        Some(Ok(Value::Nil)) => Ok(None),
        Some(Err(error)) => Err(translate(&error)),
        other => Err(unexpected(format_args!("{other:?} to EXEC"))),
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

/// What `acquire-all.lua` says: a counter for each that was asked for, or none.
pub(crate) fn counters(answer: &Value, asked: usize) -> Result<Vec<u64>, Error> {
    match answer {
        Value::Array(values) if values.is_empty() || values.len() == asked => {
            values.iter().map(counter).collect::<Result<_, _>>().map_err(Error::maybe_applied)
        }
        other => Err(unexpected(format_args!("{other:?} to {asked} acquisitions at once"))),
    }
}

pub(crate) fn only(answers: Vec<RedisResult<Value>>) -> Result<RedisResult<Value>, Error> {
    answers.into_iter().next().ok_or_else(|| unexpected("no reply"))
}

pub(crate) fn read<T: redis::FromRedisValue>(answer: RedisResult<Value>) -> Result<T, Error> {
    redis::from_redis_value(answer.map_err(|e| translate(&e))?).map_err(unexpected)
}

/// What the server's clock says, since 1970.
pub(crate) fn time(answer: RedisResult<Value>) -> Result<Duration, Error> {
    let (seconds, micros): (u64, u64) = read(answer)?;
    Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
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

/// What `acquire.lua` says of a name that was not granted. When to look again is not said there.
pub(crate) fn busy(answer: &Value, asked: Share) -> Result<Busy, Error> {
    let odd = || unexpected(format_args!("{answer:?} to an acquisition"));
    let Value::Array(parts) = answer else { return Err(odd()) };
    let [Value::Int(0), mark, Value::Int(ahead), held @ ..] = &parts[..] else { return Err(odd()) };
    let holder = match held {
        [] => None,
        [Value::BulkString(value), Value::Int(ttl), Value::Int(weight)] => {
            let share = u32::try_from(*weight).ok().and_then(|weight| Share::from_parts(weight, asked.capacity()));
            Some(holder(value, *ttl, share.ok_or_else(odd)?))
        }
        _ => return Err(odd()),
    };
    Ok(Busy::new(Duration::ZERO).with_position(u32::try_from(*ahead).ok()).with_grant_seq(counter(mark)?).with_holder(holder))
}

/// A push as `queue.lua` writes it, `<counter>:<claim in ms>`. Anything else is at least a reason to look.
pub(crate) fn notice(payload: &[u8], owner: &Owner) -> Notice {
    let granted = || {
        let (counter, claim) = std::str::from_utf8(payload).ok()?.split_once(':')?;
        let (fence, claim) = (Fence::from_counter(counter.parse().ok()?)?, Duration::from_millis(claim.parse().ok()?));
        Some(Notice::Granted { owner: owner.clone(), fence, handoff_ttl: claim })
    };
    granted().unwrap_or(Notice::Changed)
}
