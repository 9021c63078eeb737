//! Servers that all take writes, and have one clock each: a Galera cluster, or a group with several primaries.
//!
//! A lease ends by the clock of the server that is asked. If clients write through two servers, one whose clock is ahead grants what
//! the other still regards as held. So the clocks of all members are measured when a connection is made. A lease lasts longer at the
//! table by as much as they may differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error as Answer, IoError, OptsBuilder};
use tenure::{Error, format_duration};
use tokio::time::{Instant, timeout};

use super::failure::contact;

/// The most by which clocks of members may differ.
pub(super) const SPREAD: Duration = Duration::from_millis(500);

/// Limit of the look at one member.
const LOOK: Duration = Duration::from_secs(2);

/// How often a clock is read: the quickest answer says most.
const READINGS: u32 = 3;

/// Other servers, as the URL has them.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    /// All clients write through one of them.
    pub(super) writers_one: bool,
    /// Where they are, if they do not say so themselves.
    pub(super) given: Vec<String>,
}

/// Settings of a server in a cluster.
const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE variable_name IN ('wsrep_on', 'wsrep_cluster_address', 'port',
  'group_replication_group_name', 'group_replication_single_primary_mode')";

/// Who a member of Galera is, what it does, and where it finds the others.
const STATUS: &str = "SHOW GLOBAL STATUS WHERE variable_name IN ('wsrep_gcomm_uuid', 'wsrep_local_state_comment',
  'wsrep_incoming_addresses')";

/// The time in seconds since 1970. A member that is not ready answers this, too.
const CLOCK: &str = "SHOW SESSION VARIABLES LIKE 'timestamp'";

type Named = BTreeMap<String, String>;

/// A look at one member.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Member {
        id: String,
        state: String,
        /// Bounds of its clock when the measurement began, in seconds.
        clock: (f64, f64),
    },
    /// It takes no connection.
    Closed,
    Unknown,
}

/// Makes sure that leases mean the same to all who may write. Returns whether several servers may be written to.
pub(super) async fn check(conn: &mut Conn, members: &Members, table: &str) -> Result<bool, Error> {
    let failed = |error: Answer| contact(&error, table);
    let variables = named(conn, VARIABLES).await.map_err(failed)?;
    let is = |name: &str, value: &str| variables.get(name).is_some_and(|given| given.eq_ignore_ascii_case(value));
    let is_group = variables.get("group_replication_group_name").is_some_and(|name| !name.is_empty());
    let is_multi_primary = is_group && is("group_replication_single_primary_mode", "off");
    if members.writers_one || !(is("wsrep_on", "on") || is_multi_primary) {
        return Ok(false);
    }
    if is_multi_primary {
        return Err(Error::refused("the server is one of a group with several primaries, whose clocks cannot be compared")
            .with_hint(format!("use one primary, or {ONE}")));
    }
    let status = named(conn, STATUS).await.map_err(failed)?;
    let incoming = status.get("wsrep_incoming_addresses").map_or("", |text| text);
    // An arbitrator has an empty address.
    let expected = incoming.split(',').filter(|address| !address.is_empty()).count();
    if expected > 1 {
        let began = Instant::now();
        let own = seen(conn, began).await.map_err(failed)?;
        let others = addresses(&variables, incoming, &members.given);
        let looks = others.iter().map(|address| look(conn, address, began));
        let mut all = join_all(looks).await;
        all.push(own);
        judge(&all, expected)?;
    }
    Ok(true)
}

const ONE: &str = "have all clients write through one server, and say so with writers=one in the store URL";

/// Where the members may be. Addresses that lead nowhere do no harm: each member has to be found.
fn addresses(variables: &Named, incoming: &str, given: &[String]) -> Vec<String> {
    let port = variables.get("port").map_or("3306", |port| port);
    let configured = variables.get("wsrep_cluster_address").map_or("", |address| address);
    let configured = configured.strip_prefix("gcomm://").unwrap_or_default().split('?').next().unwrap_or_default();
    let hosts = configured.split(',').map(|address| address.rsplit_once(':').map_or(address, |(host, _)| host));
    let mut all: Vec<String> = if given.is_empty() {
        let incoming = incoming.split(',').filter(|address| !address.eq_ignore_ascii_case("auto")).map(str::to_owned);
        incoming.chain(hosts.filter(|host| !host.is_empty()).map(|host| format!("{host}:{port}"))).collect()
    } else {
        given.to_vec()
    };
    all.retain(|address| !address.is_empty());
    all.sort();
    all.dedup();
    all
}

async fn look(conn: &Conn, address: &str, began: Instant) -> Seen {
    let (host, port) =
        address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?))).unwrap_or((address, 3306));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let opts = OptsBuilder::from_opts(conn.opts().clone());
    // A member that is not ready has no databases, and lets nobody set anything.
    let opts = opts.ip_or_hostname(host).tcp_port(port).db_name(None::<String>).setup(Vec::<String>::new());
    let looked = timeout(LOOK, async {
        let mut member = Conn::new(opts).await?;
        let seen = seen(&mut member, began).await?;
        let _ = member.disconnect().await;
        Ok::<_, Answer>(seen)
    });
    match looked.await {
        Ok(Ok(seen)) => seen,
        Ok(Err(Answer::Io(IoError::Io(error)))) if error.kind() == std::io::ErrorKind::ConnectionRefused => Seen::Closed,
        _ => Seen::Unknown,
    }
}

/// Reads the clock of a member, as it was when the measurement `began`.
async fn seen(conn: &mut Conn, began: Instant) -> Result<Seen, Answer> {
    let mut status = named(conn, STATUS).await?;
    let (mut earliest, mut latest) = (f64::MIN, f64::MAX);
    for _ in 0..READINGS {
        let sent = began.elapsed().as_secs_f64();
        let clock = named(conn, CLOCK).await?.remove("timestamp").and_then(|text| text.parse::<f64>().ok());
        let Some(clock) = clock else { return Ok(Seen::Unknown) };
        (earliest, latest) = (earliest.max(clock - began.elapsed().as_secs_f64()), latest.min(clock - sent));
    }
    let mut text = |name: &str| status.remove(name).unwrap_or_default();
    Ok(Seen::Member { id: text("wsrep_gcomm_uuid"), state: text("wsrep_local_state_comment"), clock: (earliest, latest) })
}

async fn named(conn: &mut Conn, show: &str) -> Result<Named, Answer> {
    let rows: Vec<(String, String)> = conn.query(show).await?;
    Ok(rows.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect())
}

/// Decides whether the members may have leases together. `expected`: how many of them keep data.
fn judge(seen: &[Seen], expected: usize) -> Result<(), Error> {
    let (mut clocks, mut joining, mut donors) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    for one in seen {
        let Seen::Member { id, state, clock } = one else { continue };
        if state.starts_with("Donor") {
            donors.insert(id);
        }
        if state.starts_with("Synced") || state.starts_with("Donor") || state == "Joined" {
            clocks.insert(id, *clock);
        } else {
            joining.insert(id);
        }
    }
    // One that is joining takes no connections until it has all data, which it gets from a donor.
    let closed = seen.iter().filter(|one| **one == Seen::Closed).count().min(donors.len());
    let found = clocks.len() + joining.len() + closed;
    if found < expected {
        let what = format!("{found} of the {expected} members of this cluster let their clocks be compared");
        return Err(Error::unavailable(what).with_hint(format!("name all members with members=HOST:PORT,HOST:PORT, or {ONE}")));
    }
    let bound = |of: fn(&(f64, f64)) -> f64, pick: fn(f64, f64) -> f64| clocks.values().map(of).reduce(pick).unwrap_or_default();
    let apart = bound(|clock| clock.0, f64::max) - bound(|clock| clock.1, f64::min);
    if apart > SPREAD.as_secs_f64() {
        let millis = Duration::from_secs_f64(apart).as_millis();
        let apart = format_duration(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)));
        let what =
            format!("the clocks of the members of this cluster are {apart} apart or more, so two could hold one lock at once");
        return Err(Error::refused(what).with_hint(format!("set them right with NTP, or {ONE}")));
    }
    if bound(|clock| clock.1, f64::max) - bound(|clock| clock.0, f64::min) > SPREAD.as_secs_f64() {
        return Err(Error::unavailable("the members of this cluster answer too slowly for their clocks to be compared"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tenure::ErrorKind;

    use super::*;

    fn member(id: &str, state: &str, at: f64, within: f64) -> Seen {
        Seen::Member { id: id.to_owned(), state: state.to_owned(), clock: (at, at + within) }
    }

    #[test]
    fn leases_need_the_clocks_of_all_that_take_writes() {
        let a = member("a", "Synced", 100.0, 0.01);
        let with = |others: &[Seen], expected| {
            let all = [&[a.clone()][..], others].concat();
            judge(&all, expected).map_err(|error| error.kind()).err()
        };
        assert_eq!(with(&[member("b", "Synced", 100.4, 0.01)], 2), None);
        assert_eq!(with(&[member("b", "Synced", 99.4, 0.01)], 2), Some(ErrorKind::Refused));
        assert_eq!(with(&[member("b", "Synced", 120.0, 0.01)], 2), Some(ErrorKind::Refused));
        assert_eq!(with(&[member("b", "Donor/Desynced", 120.0, 0.01)], 2), Some(ErrorKind::Refused));
        assert_eq!(with(&[member("b", "Synced", 99.9, 0.7)], 2), Some(ErrorKind::Unavailable), "too slow");
        // Not found, the same one twice, or nobody knows why it is closed.
        for other in [Seen::Unknown, Seen::Closed, a.clone()] {
            assert_eq!(with(&[other], 2), Some(ErrorKind::Unavailable));
        }
        // One that gets its data has no clock yet that matters.
        assert_eq!(with(&[member("b", "Joining: receiving State Transfer", 120.0, 0.01)], 2), None);
        assert_eq!(with(&[member("b", "Donor/Desynced", 100.0, 0.01), Seen::Closed], 3), None);
        assert_eq!(
            with(&[member("b", "Donor/Desynced", 100.0, 0.01), Seen::Closed, Seen::Closed], 4),
            Some(ErrorKind::Unavailable)
        );
    }

    #[test]
    fn members_are_found_where_they_say_or_where_the_url_says() {
        let variables = |address: &str| {
            Named::from([("port".to_owned(), "3307".to_owned()), ("wsrep_cluster_address".to_owned(), address.to_owned())])
        };
        let here = addresses(&variables("gcomm://"), "10.0.0.1:3306,,10.0.0.2:3306", &[]);
        assert_eq!(here, ["10.0.0.1:3306", "10.0.0.2:3306"]);
        assert_eq!(addresses(&variables("gcomm://a:4567,b?pc.wait=1"), "AUTO,AUTO", &[]), ["a:3307", "b:3307"]);
        assert_eq!(addresses(&variables("gcomm://a"), "10.0.0.1:3306", &["c".to_owned()]), ["c"]);
        assert!(addresses(&variables("gcomm://"), "AUTO,AUTO", &[]).is_empty());
    }
}
