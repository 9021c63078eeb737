//! A process that plays one client of a broken lock on a real server, a move at a time.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tenure::BootTime;
use tenure_testkit::history::{What, nanos};
use tenure_testkit::register::{Asked, Visitor};

use super::case::Case;
use super::catalogue::broken_locks;
use super::command::{Command, LOCK, Value};
use super::link::Link;
use super::program::{Change, Client, Hold, Part, Stage, Tick};
use super::wire::Scale;

/// An order to a player, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Where the server is, for each lane.
    Connect { lanes: [SocketAddr; 2], file: PathBuf },
    /// Sends the lane's next command, beginning a routine first.
    Send { lane: usize, begin: Option<Part>, now: Tick },
    /// Reads the reply, and goes on with it.
    Hear { lane: usize, now: Tick },
    /// Waits for a message, and goes on with it.
    Listen { now: Tick },
    /// Writes to the guarded resource.
    Write { register: PathBuf },
    /// The work is done.
    EndWork,
    /// The machine has slept through the step before `now`.
    Slept { now: Tick },
}

/// Its answer: its new state, and the events.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) client: String,
    /// The reply of the server, in words.
    pub(crate) reply: Option<String>,
    pub(crate) events: Vec<(u64, What)>,
}

/// The result of a visit to the guarded resource.
pub(crate) const LET_IN: &str = "let in";
pub(crate) const REFUSED: &str = "refused";

struct Player {
    case: Case,
    scale: Scale,
    client: Client,
    lanes: [SocketAddr; 2],
    file: PathBuf,
    links: HashMap<(usize, u8), Link>,
    /// The last reply.
    heard: Option<Value>,
}

/// Plays the client `who` of the broken lock `id`, as standard input says, until that ends.
///
/// # Errors
/// When standard input or output breaks, or says what was not expected.
pub fn play(id: &str, who: u8, scale: &str) -> io::Result<()> {
    let case = broken_locks().into_iter().find(|case| case.id == id);
    let case = case.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no broken lock is called {id}")))?;
    let client = Client::new(who, case.setting.skews[usize::from(who)]);
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let scale = serde_json::from_str(scale)?;
    let mut player =
        Player { case, scale, client, lanes: [nowhere; 2], file: PathBuf::new(), links: HashMap::new(), heard: None };
    for line in io::stdin().lock().lines() {
        let events = player.obey(&serde_json::from_str(&line?)?);
        let reply = player.heard.take().map(|reply| reply.to_string());
        let answer = Answer { client: format!("{:?}", player.client), reply, events };
        let mut out = io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        out.flush()?;
    }
    Ok(())
}

impl Player {
    fn obey(&mut self, order: &Order) -> Vec<(u64, What)> {
        let scheme = self.case.setting.scheme;
        match order {
            Order::Connect { lanes, file } => {
                (self.lanes, self.file) = (*lanes, file.clone());
                self.links.clear();
                Vec::new()
            }
            Order::Send { lane, begin, now } => {
                let before = boot();
                let changes = begin.map_or_else(Vec::new, |part| self.client.begin(&scheme, part, *now));
                // What it says it does, it says before it does it.
                let events = self.tell(before, changes, *now);
                if let Some((connection, command)) = self.client.send(*lane, *now) {
                    self.send(*lane, connection, command);
                }
                events
            }
            Order::Hear { lane, now } => {
                let Stage::Sent(connection, _, command) = self.client.lanes[*lane].stage else { return Vec::new() };
                let reply = self.receive(*lane, connection, command);
                self.heard = Some(reply);
                let changes = self.client.hear(&scheme, *lane, reply, *now);
                self.tell(boot(), changes, *now)
            }
            Order::Listen { now } => {
                let link = self.links.get_mut(&(0, 1)).expect("it has subscribed");
                link.listen().expect("a message comes");
                let changes = self.client.hear(&scheme, 0, Value::Word("message"), *now);
                self.tell(boot(), changes, *now)
            }
            Order::Write { register } => {
                let fence = self.client.hold.and_then(|hold| self.fence(hold));
                let mut visitor = Visitor::new(register, self.client.to_string(), u32::from(self.client.takes), fence);
                // Who is not let in to read does not write.
                let wrote = visitor.ask(Asked::Read).and_then(|read| visitor.ask(Asked::Write { read, wrote: read + 1 }));
                self.heard = Some(Value::Word(if wrote.is_some() { LET_IN } else { REFUSED }));
                Vec::new()
            }
            Order::EndWork => {
                let changes = self.client.end_work();
                self.tell(boot(), changes, 0)
            }
            Order::Slept { now } => {
                self.client.slept += 1;
                let until = self.client.hold.and_then(|hold| hold.until);
                self.tell(boot(), vec![Change::ValidUntil(until)], *now)
            }
        }
    }

    fn send(&mut self, lane: usize, connection: u8, command: Command) {
        let (engine, address) = (self.case.setting.scheme.engine, self.lanes[lane]);
        let open = || Link::open(engine, address, &self.file, &self.scale).expect("the server is there");
        let link = self.links.entry((lane, connection)).or_insert_with(open);
        link.send(&self.scale, command).expect("the server listens");
    }

    /// The last of the replies; [`Value::Broken`] when the connection ended first, which is then
    /// forgotten.
    fn receive(&mut self, lane: usize, connection: u8, command: Command) -> Value {
        let link = self.links.get_mut(&(lane, connection)).expect("it has sent");
        link.receive(&self.scale, command).unwrap_or_else(|_| {
            self.links.remove(&(lane, connection));
            Value::Broken
        })
    }

    /// The fence as the guarded resource gets it.
    fn fence(&self, hold: Hold) -> Option<u64> {
        let counted = hold.fence.map(|fence| u64::from(fence.unsigned_abs()));
        counted.map(|counted| self.links.get(&(0, 0)).map_or(counted, |link| link.fence(counted)))
    }

    /// Changes as events of the history.
    fn tell(&self, at: u64, changes: Vec<Change>, now: Tick) -> Vec<(u64, What)> {
        let acquisition = u32::from(self.client.takes);
        let name = || LOCK.to_owned();
        let until = |until: Option<Tick>| until.map(|until| self.scale.end(at, self.client.clock(now), until));
        let event = |change| match change {
            Change::Asks => What::Ask { acquisition, name: name() },
            Change::Queued => What::Queued { acquisition, name: name() },
            Change::Holds(hold) => What::Grant {
                acquisition,
                name: name(),
                weight: self.case.setting.weights[usize::from(self.client.who)],
                token: None,
                fence: self.fence(hold),
                until: until(hold.until),
            },
            Change::ValidUntil(end) => What::Valid { acquisition, until: until(end) },
            Change::Lost => What::Lost { acquisition, why: "as it thinks".to_owned() },
            Change::Releases => What::Release { acquisition },
            Change::Freed => What::Released { acquisition, how: "as it thinks".to_owned() },
            Change::Busy => What::Failed { acquisition, kind: Some("Busy".to_owned()), text: "held by another".to_owned() },
        };
        changes.into_iter().map(|change| (at, event(change))).collect()
    }
}

fn boot() -> u64 {
    nanos(BootTime::now().since_boot())
}
