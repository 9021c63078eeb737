//! `tenure break`: takes a name from its holders, and does no harm that was not asked for.

use std::os::unix::ffi::OsStrExt as _;

use tenure::{Holder, Lease, Locker, Name, ReleaseOutcome, Share};
use tenure_stores::Options;

use crate::args::Break;
use crate::config::{Settings, TTL};
use crate::exit::{Failure, REFUSED, ask, say};
use crate::give_up::settle;
use crate::lease::named;
use crate::names::lock_name;
use crate::store::{self, open_existing};
use crate::{min_hold, terminal};

/// Exit code where nothing was broken.
const NOTHING: u8 = 1;

/// Takes the name from its holders.
pub(crate) async fn main(args: &Break) -> Result<u8, Failure> {
    let name = lock_name(&args.name)?;
    let settings = Settings::load(&args.common)?;
    let holders = match open_existing(&settings, None).await? {
        Some(locker) => {
            let entry = locker.inspect(&name).await.map_err(named(&name))?;
            Some((locker, entry.map(|entry| entry.holders).unwrap_or_default()))
        }
        None => None,
    };
    let Some((locker, holders)) = holders.filter(|(_, holders)| !holders.is_empty()) else {
        say(format_args!("nothing is broken: {name:?} is not held in {}", store::shown(&settings)));
        return Ok(NOTHING);
    };
    let (meant, others): (Vec<_>, Vec<_>) = holders.into_iter().partition(|holder| is_meant(holder, args));
    if meant.is_empty() {
        let is_unknown = args.fence.is_some() && others.iter().any(|holder| holder.fence.is_none());
        let told = if is_unknown { ", whose fence the store does not show; say --if-held-by" } else { "" };
        say(format_args!("nothing is broken: {name:?} is held by {}{told}", list(&others)));
        return Ok(NOTHING);
    }
    let keeps = Keeps::of(&settings);
    if let Some(holder) = meant.iter().find(|holder| !args.foreign && keeps.may_be_data(holder)) {
        let what = format!("{name:?} is not broken: its value is no lock of tenure, it may be data of an application: {holder}");
        let scheme = if keeps == Keeps::OtherData { "name the scheme of its client in the store URL, or " } else { "" };
        return Err(Failure::new(REFUSED, format!("{what}; {scheme}say --foreign to delete what is there")));
    }
    if !args.yes && terminal::can_ask() && !ask(format_args!("{name:?} is held by {}; break it?", list(&meant))) {
        say(format_args!("nothing is broken: {name:?} is left to its holder"));
        return Ok(NOTHING);
    }
    Ok(if break_all(&locker, &name, meant, &settings).await? { 0 } else { NOTHING })
}

/// Takes the name from `holders`; whether one of them still held it. The store compares the owner in the
/// same step, so nobody else loses what he took meanwhile.
async fn break_all(locker: &Locker, name: &Name, holders: Vec<Holder>, settings: &Settings) -> Result<bool, Failure> {
    let mut broken = false;
    for holder in holders {
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
    settle(locker).await;
    Ok(broken)
}

/// Whether the holder is one of those that the conditions name.
fn is_meant(holder: &Holder, args: &Break) -> bool {
    let gone = holder.owner.lingers_after();
    let owner = gone.as_ref().unwrap_or(&holder.owner);
    let is_holder = |asked: &String| *asked == owner.to_string() || owner.label().map(min_hold::without) == Some(asked);
    args.if_held_by.as_ref().is_none_or(is_holder) && args.fence.is_none_or(|fence| holder.fence == Some(fence))
}

/// Contents of a store beside locks of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// Nothing, or a scheme in the URL says what a lock looks like.
    Locks,
    /// Keys and nodes whose names look like those of a lock of other clients. No scheme names them.
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    NamesOfOthers,
    /// Other data under any name.
    OtherData,
}

impl Keeps {
    fn of(settings: &Settings) -> Self {
        let parameters = settings.store.as_bytes().split(|byte| b"?&".contains(byte)).skip(1);
        let schemes = parameters.filter_map(|parameter| parameter.strip_prefix(b"scheme="));
        match Options::parse(&settings.store) {
            _ if schemes.last().is_some_and(|scheme| ![&b"native"[..], b"cas"].contains(&scheme)) => Self::Locks,
            Ok(Options::Redis(_)) => Self::OtherData,
            #[cfg(feature = "memcached")]
            Ok(Options::Memcached(_)) => Self::OtherData,
            #[cfg(feature = "etcd")]
            Ok(Options::Etcd(_)) => Self::NamesOfOthers,
            #[cfg(feature = "zookeeper")]
            Ok(Options::ZooKeeper(_)) => Self::NamesOfOthers,
            _ => Self::Locks,
        }
    }

    /// Whether the value may be anybody's. A share of others, as a reader in ZooKeeper, has no ttl.
    fn may_be_data(self, holder: &Holder) -> bool {
        let is_share = holder.share != Share::MUTEX && holder.ttl.is_some();
        self != Self::Locks && !holder.owner.is_generated() && holder.fence.is_none() && !is_share
    }
}

fn list(holders: &[Holder]) -> String {
    holders.iter().map(ToString::to_string).collect::<Vec<_>>().join(", and by ")
}
