//! Reading what the server answered.

use std::time::Duration;

use redis::{RedisResult, Value};
use tenure::{Error, Fence, Holder, Owner, Renewal, Share};

use crate::failure::{translate, unexpected};

/// The two results of `MULTI, a, b, EXEC`. Where either failed, what the other did stands: the error says so.
pub(crate) fn transaction(answers: Vec<RedisResult<Value>>) -> Result<(Value, Value), Error> {
    let mut answers = answers.into_iter();
    let (queued, executed) = (answers.by_ref().take(3).collect::<Vec<_>>(), answers.next());
    // What was refused when it was queued says why; EXEC then only says that something was.
    if let Some(error) = queued.iter().find_map(|answer| answer.as_ref().err()) {
        let error = translate(error);
        // Where MULTI itself was refused, the commands behind it ran as they came.
        let ran_alone = matches!(queued.first(), Some(Err(_))) && queued.get(1).is_some_and(Result::is_ok);
        return Err(if ran_alone { error.maybe_applied() } else { error });
    }
    match executed {
        Some(Ok(Value::Array(results))) => {
            let mut results = results.into_iter().map(Value::extract_error);
            let (first, second) = (results.next(), results.next());
            let applied = matches!(first, Some(Ok(ref value)) if *value != Value::Nil);
            match (first, second) {
                (Some(Ok(first)), Some(Ok(second))) => Ok((first, second)),
                (Some(Err(error)), _) => Err(translate(&error)),
                (_, Some(Err(error))) if applied => Err(translate(&error).maybe_applied()),
                (_, Some(Err(error))) => Err(translate(&error)),
                _ => Err(unexpected("a transaction with too few results")),
            }
        }
        Some(Err(error)) => Err(translate(&error)),
        other => Err(unexpected(format_args!("{other:?} to EXEC"))),
    }
}

pub(crate) fn renewals(answer: RedisResult<Value>, asked: usize) -> Result<Vec<Renewal>, Error> {
    let renewal = |value: &Value| match value {
        Value::Int(1) => Ok(Renewal::Renewed { waiting: false }),
        Value::Int(0) => Ok(Renewal::Gone),
        other => Err(unexpected(format_args!("{other:?} to a renewal"))),
    };
    match answer.map_err(|e| translate(&e))? {
        Value::Array(values) if values.len() == asked => values.iter().map(renewal).collect(),
        other => Err(unexpected(format_args!("{other:?} to {asked} renewals"))),
    }
}

pub(crate) fn only(answers: Vec<RedisResult<Value>>) -> Result<RedisResult<Value>, Error> {
    answers.into_iter().next().ok_or_else(|| unexpected("no reply"))
}

pub(crate) fn counter(value: &Value) -> Result<u64, Error> {
    let counter = match value {
        Value::Int(counter) => u64::try_from(*counter).ok(),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    counter.ok_or_else(|| unexpected(format_args!("{value:?} as a grant counter")))
}

pub(crate) fn fence(counter: u64) -> Result<Fence, Error> {
    let exhausted = || Error::refused(format!("the grant counter stands at {counter}, beyond what a fence can be made of"));
    Fence::from_counter(counter).ok_or_else(|| exhausted().maybe_applied().fix("delete the key tenure:fence"))
}

pub(crate) fn holder(value: &[u8], ttl: i64) -> Holder {
    let ttl = u64::try_from(ttl).ok().map(Duration::from_millis);
    Holder { owner: Owner::from_bytes(value), share: Share::MUTEX, fence: None, ttl, age: None }
}
