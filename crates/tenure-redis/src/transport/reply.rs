//! Reading replies.

use std::time::Duration;

use redis::{RedisResult, Value};
use tenure::Error;

use crate::transport::failure::{translate, unexpected};

/// The answers to commands, one for each.
pub(crate) type Answers = Vec<RedisResult<Value>>;

/// The results of `MULTI, a, b, c, ..., EXEC`, without those that come after the third.
pub(crate) fn transaction(answers: Vec<RedisResult<Value>>) -> Result<[Value; 3], Error> {
    let mut results = executed(answers)?.ok_or_else(|| unexpected("nil to EXEC"))?;
    results.truncate(3);
    results.try_into().map_err(|_| unexpected("a transaction with too few results"))
}

/// The results of `MULTI, ..., EXEC`. None if a watched key has changed. If one command failed, the
/// others stay applied: the error says so.
pub(crate) fn executed(mut queued: Vec<RedisResult<Value>>) -> Result<Option<Vec<Value>>, Error> {
    let executed = queued.pop();
    // The command that was refused says why. EXEC only says that something was.
    if let Some(error) = queued.iter().find_map(|answer| answer.as_ref().err()) {
        let error = translate(error);
        // If MULTI itself was refused, the commands behind it ran as they came.
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

pub(crate) fn only(answers: Vec<RedisResult<Value>>) -> Result<RedisResult<Value>, Error> {
    answers.into_iter().next().ok_or_else(|| unexpected("no reply"))
}

pub(crate) fn read<T: redis::FromRedisValue>(answer: RedisResult<Value>) -> Result<T, Error> {
    redis::from_redis_value(answer.map_err(|e| translate(&e))?).map_err(unexpected)
}

/// The time of the server's clock, since 1970.
pub(crate) fn time(answer: RedisResult<Value>) -> Result<Duration, Error> {
    let (seconds, micros): (u64, u64) = read(answer)?;
    Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
}
