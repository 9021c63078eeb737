//! The locks A1 to A8 as the articles write them, flaws included. Copy none of them.
//!
//! Their seconds are tenths of a second here: `EXPIRE k 3` is `PEXPIRE k 300`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use jobs::{Error, crash};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script, Value, cmd};
use tokio::task::JoinHandle;

/// Ttl of each.
pub(crate) const TTL: Duration = Duration::from_millis(300);
const MILLIS: u64 = 300;

/// A lock as an article writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Article {
    /// SETNX, then EXPIRE, then DEL.
    A1,
    /// The first two in a script.
    A2,
    /// A1, and a lock without a ttl is taken over.
    A3,
    /// SETNX, GET, GETSET with the end of the lease as the value.
    A4,
    /// SET NX PX with the same value for all, then DEL.
    A5,
    /// With a token; GET and DEL in two steps.
    A6,
    /// With a token and a renewal, released by a script.
    A7,
    /// WATCH, MULTI, EXEC on a pool of connections.
    A8,
}

/// A lock that was won.
pub(crate) struct Won {
    value: String,
    /// End of its ttl, counted from the last command that set it.
    until: Arc<Mutex<Instant>>,
    renewal: Option<JoinHandle<()>>,
}

impl Won {
    /// Whether its ttl has not passed.
    pub(crate) fn is_valid(&self) -> bool {
        Instant::now() < *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Won {
    fn drop(&mut self) {
        if let Some(renewal) = &self.renewal {
            renewal.abort();
        }
    }
}

/// A client of one of these locks.
pub(crate) struct Client {
    article: Article,
    /// The pool. All but A8 use the first.
    pool: [MultiplexedConnection; 2],
    crashes: f64,
}

impl Client {
    pub(crate) async fn connect(article: Article, url: &str, crashes: f64) -> Result<Self, Error> {
        let client = redis::Client::open(url)?;
        // A buyer that was stopped is no reason to give up an answer that has come meanwhile.
        let patient = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let connect = async || client.get_multiplexed_async_connection_with_config(&patient).await;
        let pool = [connect().await?, connect().await?];
        Ok(Self { article, pool, crashes })
    }

    /// Tries once.
    pub(crate) async fn take(&mut self, key: &str) -> Result<Option<Won>, Error> {
        let until = Arc::new(Mutex::new(Instant::now() + TTL));
        let value = match self.article {
            Article::A3 => format!("{:.4}", (unix() + TTL).as_secs_f64()),
            Article::A4 => (unix() + TTL).as_millis().to_string(),
            Article::A6 | Article::A7 | Article::A8 => format!("{:032x}", fastrand::u128(..)),
            _ => "1".to_owned(),
        };
        let is_won = match self.article {
            Article::A1 => self.set_then_expire(key, &value).await?,
            Article::A2 => {
                let script = "if redis.call('SETNX', KEYS[1], ARGV[1]) == 0 then return 0 end
                    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
                Script::new(script).key(key).arg(&value).arg(MILLIS).invoke_async(&mut self.pool[0]).await?
            }
            Article::A3 => self.set_then_expire(key, &value).await? || self.adopts(key, &value).await?,
            Article::A4 => self.get_set(key, &value).await?,
            Article::A5 | Article::A6 | Article::A7 => {
                let mut set = cmd("SET");
                set.arg(key).arg(&value).arg("NX").arg("PX").arg(MILLIS);
                set.query_async::<Value>(&mut self.pool[0]).await? == Value::Okay
            }
            Article::A8 => self.watched(key, &value, None).await?,
        };
        let renewal = (is_won && self.article == Article::A7).then(|| self.renews(key, &value, &until));
        Ok(is_won.then_some(Won { value, until, renewal }))
    }

    /// Gives it up.
    pub(crate) async fn free(&mut self, key: &str, won: Won) -> Result<(), Error> {
        let connection = &mut self.pool[0];
        match self.article {
            // Only before its own deadline.
            Article::A4 if !won.is_valid() => {}
            Article::A1 | Article::A2 | Article::A4 | Article::A5 => cmd("DEL").arg(key).query_async(connection).await?,
            Article::A3 | Article::A6 => {
                let value: Option<String> = cmd("GET").arg(key).query_async(connection).await?;
                if value.as_ref() == Some(&won.value) {
                    cmd("DEL").arg(key).query_async::<()>(connection).await?;
                }
            }
            Article::A7 => {
                let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
                Script::new(script).key(key).arg(&won.value).invoke_async::<()>(connection).await?;
            }
            Article::A8 => drop(self.watched(key, "", Some(&won.value)).await?),
        }
        Ok(())
    }

    /// SETNX, and EXPIRE if it won. A crash between the two locks the name for ever.
    async fn set_then_expire(&mut self, key: &str, value: &str) -> Result<bool, Error> {
        let is_won: bool = cmd("SETNX").arg(key).arg(value).query_async(&mut self.pool[0]).await?;
        if is_won {
            crash(self.crashes);
            cmd("PEXPIRE").arg(key).arg(MILLIS).query_async::<()>(&mut self.pool[0]).await?;
        }
        Ok(is_won)
    }

    /// No ttl: its owner has died, or has not set it yet.
    async fn adopts(&mut self, key: &str, value: &str) -> Result<bool, Error> {
        let ttl: i64 = cmd("TTL").arg(key).query_async(&mut self.pool[0]).await?;
        if ttl < 0 {
            cmd("SET").arg(key).arg(value).arg("PX").arg(MILLIS).query_async::<()>(&mut self.pool[0]).await?;
        }
        Ok(ttl < 0)
    }

    async fn get_set(&mut self, key: &str, value: &str) -> Result<bool, Error> {
        let connection = &mut self.pool[0];
        if cmd("SETNX").arg(key).arg(value).query_async(connection).await? {
            return Ok(true);
        }
        let is_past = |end: &str| end.parse().is_ok_and(|end: u128| end < unix().as_millis());
        let seen: Option<String> = cmd("GET").arg(key).query_async(connection).await?;
        let Some(seen) = seen.filter(|seen| is_past(seen)) else { return Ok(false) };
        let replaced: Option<String> = cmd("GETSET").arg(key).arg(value).query_async(connection).await?;
        Ok(replaced.as_ref() == Some(&seen))
    }

    /// Sets the key if it is free, or deletes it if it has `mine`. The pool gives `EXEC` another
    /// connection than `WATCH`, so nothing is watched.
    async fn watched(&mut self, key: &str, value: &str, mine: Option<&str>) -> Result<bool, Error> {
        let [one, other] = &mut self.pool;
        cmd("WATCH").arg(key).query_async::<()>(one).await?;
        let seen: Option<String> = cmd("GET").arg(key).query_async(one).await?;
        if seen.as_deref() != mine {
            return Ok(false);
        }
        let mut transaction = redis::pipe();
        transaction.atomic();
        match mine {
            Some(_) => transaction.cmd("DEL").arg(key),
            None => transaction.cmd("SET").arg(key).arg(value).arg("PX").arg(MILLIS),
        };
        Ok(transaction.query_async::<Value>(other).await? != Value::Nil)
    }

    /// Every ttl / 3 back to the full ttl, if the token is still there.
    fn renews(&self, key: &str, value: &str, until: &Arc<Mutex<Instant>>) -> JoinHandle<()> {
        let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";
        let (mut connection, key, value, until) = (self.pool[0].clone(), key.to_owned(), value.to_owned(), Arc::clone(until));
        tokio::spawn(async move {
            let script = Script::new(script);
            loop {
                tokio::time::sleep(TTL / 3).await;
                let sent_at = Instant::now();
                let renewed = script.key(&key).arg(&value).arg(MILLIS).invoke_async(&mut connection).await;
                if renewed == Ok(1) {
                    *until.lock().unwrap_or_else(PoisonError::into_inner) = sent_at + TTL;
                }
            }
        })
    }
}

fn unix() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}
