//! `tenure renew` and `release`: one step on a lease that another process took.

use std::ffi::OsStr;
use std::time::Duration;

use tenure::{Error, ErrorKind, Lease, Locker, Name, Owner, ReleaseOutcome, Share, format_duration};

use crate::args::{Release, Renew};
use crate::config::{Settings, TTL};
use crate::exit::{Failure, LOST, about};
use crate::give_up::settle;
use crate::keep::{self, Asked};
use crate::min_hold;
use crate::names::lock_name;
use crate::store::open_existing;

/// Renews the lease of a token.
pub(crate) async fn renew(args: &Renew) -> Result<u8, Failure> {
    let (name, owner) = claim(&args.name, &args.token)?;
    let settings = Settings::load(&args.common)?;
    let Some(locker) = open_existing(&settings, args.ttl).await? else { return Err(not_held(&name)) };
    let ttl = args.ttl.or(settings.ttl).unwrap_or(TTL);
    let (lease, _) = lease(&locker, name.clone(), owner, ttl).await?;
    let lost = |error: Error| if error.kind() == ErrorKind::Lost { not_held(&name) } else { named(&name)(error) };
    locker.renew(&lease).await.map_err(lost)?;
    settle(&locker).await;
    settings.voice.detail(format_args!("{name:?} is renewed"));
    Ok(0)
}

/// Releases the lease of a token, through the process that keeps it where there is one.
pub(crate) async fn release(args: &Release) -> Result<u8, Failure> {
    let (name, owner) = claim(&args.name, &args.token)?;
    let settings = Settings::load(&args.common)?;
    let asked = keep::ask_release(&name, &owner, &settings).await;
    if let Asked::Unheard(why) = &asked {
        let what = format!("the keeper of {name:?} has not released it, {why}");
        settings.voice.say(format_args!("{what}; the store is asked instead, which a keeper that is there takes for a loss"));
    }
    let (released, unknown) = match asked {
        Asked::Answered(released) => (released, None),
        Asked::Nobody | Asked::Unheard(_) => (release_at_store(&name, owner, &settings).await?, None),
        Asked::Unknown(why) => (release_at_store(&name, owner, &settings).await?, Some(why)),
    };
    match (released, unknown) {
        (ReleaseOutcome::Released, None) => settings.voice.detail(format_args!("{name:?} is released")),
        (ReleaseOutcome::Released, Some(why)) => {
            let what = format!("{name:?} is released at the store, for {why}");
            settings.voice.say(format_args!("{what}; a keeper that only stood still takes that for a loss"));
        }
        (_, None) => return Err(not_held(&name)),
        // It may be the keeper that has released it: that is no loss.
        (_, Some(why)) => {
            let what = format!("{name:?} is not held with this token any more");
            settings.voice.say(format_args!("{what}; whether it was released or lost before is unknown, for {why}"));
        }
    }
    Ok(0)
}

async fn release_at_store(name: &Name, owner: Owner, settings: &Settings) -> Result<ReleaseOutcome, Failure> {
    let Some(locker) = open_existing(settings, None).await? else { return Ok(ReleaseOutcome::WasLost) };
    let (lease, age) = lease(&locker, name.clone(), owner, TTL).await?;
    // A store that does not tell the age keeps the name taken for too long rather than too short a
    // time.
    let linger = min_hold::of(&lease.owner).map_or(Duration::ZERO, |min| min.saturating_sub(age.unwrap_or_default()));
    if !linger.is_zero() {
        settings.voice.detail(format_args!("{name:?} stays taken for {}, as --min-hold says", format_duration(linger)));
    }
    let released = locker.release_lingering(&lease, linger).await.map_err(named(name));
    settle(&locker).await;
    released
}

/// Makes an error one that names the lock.
pub(crate) fn named(name: &Name) -> impl Fn(Error) -> Failure + '_ {
    move |error| about(format_args!("{name:?}"), error)
}

fn not_held(name: &Name) -> Failure {
    let what = format!("{name:?} is not held with this token: it was released, its lease has ended, or it was broken");
    Failure::new(LOST, format!("{what}; work that went on since may have overlapped with another holder's"))
}

fn claim(name: &OsStr, token: &str) -> Result<(Name, Owner), Failure> {
    let owner = token.parse().map_err(|error: Error| match error.kind() {
        ErrorKind::Invalid => Failure::usage(error.context("--token").to_string()),
        _ => error.into(),
    })?;
    Ok((lock_name(name)?, owner))
}

/// The lease of a token, and how long it is held at least, if the store tells. Its kind is what is found at
/// the name, so that it need not be said again.
async fn lease(locker: &Locker, name: Name, owner: Owner, ttl: Duration) -> Result<(Lease, Option<Duration>), Failure> {
    let entry = locker.inspect(&name).await.map_err(named(&name))?;
    let holders = entry.map(|entry| entry.holders).unwrap_or_default();
    let found = holders.iter().find(|holder| holder.owner == owner);
    let share = found.or(holders.first()).map_or(Share::MUTEX, |holder| holder.share);
    // A server's clock is set forward and back: by an age of it a name would be free too early.
    let relies = !locker.store().features().server_clock;
    let age = found.and_then(|holder| holder.age).filter(|_| relies);
    Ok((Lease::new(name, owner, share, ttl), age))
}
