//! `tenure renew`, `release` and `break`: one step on a lease that another process took.

use std::ffi::OsStr;
use std::time::Duration;

use tenure::{Error, ErrorKind, Lease, Locker, Name, Owner, ReleaseOutcome, Share, format_duration};

use crate::args::{Break, Release, Renew};
use crate::config::{Settings, TTL};
use crate::exit::{Failure, LOST, about, say};
use crate::keep::{self, Asked};
use crate::names::lock_name;
use crate::store::open_existing;
use crate::{min_hold, store};

/// Renews the lease of a token.
pub(crate) async fn renew(args: &Renew) -> Result<u8, Failure> {
    let (name, owner) = claim(&args.name, &args.token)?;
    let settings = Settings::load(&args.common)?;
    let Some(locker) = open_existing(&settings, args.ttl).await? else { return Err(not_held(&name)) };
    let ttl = args.ttl.or(settings.ttl).unwrap_or(TTL);
    let (lease, _) = lease(&locker, name.clone(), owner, ttl).await?;
    let lost = |error: Error| if error.kind() == ErrorKind::Lost { not_held(&name) } else { named(&name)(error) };
    locker.renew(&lease).await.map_err(lost)?;
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
    locker.release_lingering(&lease, linger).await.map_err(named(name))
}

/// Makes an error one that names the lock.
fn named(name: &Name) -> impl Fn(Error) -> Failure + '_ {
    move |error| about(format_args!("{name:?}"), error)
}

fn not_held(name: &Name) -> Failure {
    let what = format!("{name:?} is not held with this token: it was released, its lease has ended, or it was broken");
    Failure::new(LOST, format!("{what}; work that went on since may have overlapped with another holder's"))
}

/// Takes the name from its holders.
pub(crate) async fn break_lease(args: &Break) -> Result<u8, Failure> {
    const NOTHING_HELD: u8 = 1;
    let name = lock_name(&args.name)?;
    let settings = Settings::load(&args.common)?;
    let broken = match open_existing(&settings, None).await? {
        Some(locker) => break_all(&locker, &name, &settings).await?,
        None => false,
    };
    if !broken {
        say(format_args!("nothing is broken: {name:?} is not held in {}", store::shown(&settings)));
    }
    Ok(if broken { 0 } else { NOTHING_HELD })
}

/// Takes the name from all who are shown to hold it; whether there were any.
async fn break_all(locker: &Locker, name: &Name, settings: &Settings) -> Result<bool, Failure> {
    let entry = locker.inspect(name).await.map_err(named(name))?;
    let mut broken = false;
    for holder in entry.map(|entry| entry.holders).unwrap_or_default() {
        let owner = holder.owner.clone();
        let lease = Lease::new(name.clone(), owner, holder.share, TTL).with_fence(holder.fence);
        match locker.release(&lease).await.map_err(named(name))? {
            ReleaseOutcome::Released => {
                let told = match holder.owner.label() {
                    _ if holder.owner.lingers_after().is_some() => "",
                    Some(_) => "; the next holder may start at once, and that one finds out at its next renewal",
                    None => "; it looks like another client's lock, and that client is not notified",
                };
                settings.voice.say(format_args!("{name:?} is broken; it was held by {holder}{told}"));
                broken = true;
            }
            _ => {
                settings.voice.say(format_args!("{name:?} changed hands meanwhile; see `tenure show {name}`"));
            }
        }
    }
    Ok(broken)
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
