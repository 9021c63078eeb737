//! Plays a story on a real server with real processes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use tenure::BootTime;
use tenure_testkit::history::{Event, History, Rule, What, nanos};
use tenure_testkit::register::Register;
use tenure_testkit::{Proxy, Recorder, Signal, Spawned};

use super::scale::{LEASE, Scale, WALL};
use super::server::{Engine, LOCK, Server};
use super::story::Story;
use super::visitor::{NO_REPLY, Order, Scene};
use crate::{Lab, Shown};

const PATIENCE: Duration = Duration::from_secs(10);
/// A step is doubled until the machine keeps up, or a step is this long.
const SLOWEST: Duration = Duration::from_secs(1);
/// Plays it, more slowly each time the machine is too slow for it.
pub(super) fn play(lab: &Lab, story: &Story, seed: u64) -> Shown {
    let mut step = story.engine.step();
    loop {
        let shown = Theatre::open(lab, story, seed, step).play();
        if shown.starved.is_none() || step >= SLOWEST {
            return shown;
        }
        step *= 2;
    }
}

/// The process of one client.
struct Actor {
    process: Spawned,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    lives: bool,
    asked: bool,
    weight: u32,
}

impl Actor {
    fn ask(&mut self, order: &Order) -> String {
        writeln!(self.to, "{}", serde_json::to_string(order).expect("an order")).expect("the process listens");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the process answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("the process said {line:?}: {error}"))
    }
}

struct Theatre<'a> {
    story: &'a Story,
    scale: Scale,
    /// When in a step its parts are played, in nanoseconds from its beginning.
    offset: u64,
    now: i16,
    server: Server,
    actors: HashMap<&'static str, Actor>,
    /// In front of each connection, where something is to happen on the way.
    proxies: HashMap<&'static str, Proxy>,
    /// The last command of each connection.
    sent: HashMap<&'static str, &'static str>,
    recorder: Recorder,
    register: Register,
    late: Option<String>,
    /// Where a table is.
    dir: tempfile::TempDir,
}

impl<'a> Theatre<'a> {
    fn open(lab: &Lab, story: &'a Story, seed: u64, step: Duration) -> Self {
        let tells = |words: &str| story.lines.iter().any(|line| line.contains(words));
        let server = Server::start(story.engine, tells("clock jumps"), tells("replica takes over"));
        let keeps = story.breaks == Rule::FalseLoss;
        let recorder = Recorder::new(History { capacity: story.capacity, keeps, ..History::new(story.id, seed) });
        crate::run::keep(&recorder);
        let register = Register::open(recorder.clone());
        register.compares(story.compares);
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        // Between a tenth and a fifth of a step: the rest is for the parts, and half a step ends
        // every lease.
        let half = nanos(step / 2);
        let offset = half / 5 + fastrand::Rng::with_seed(seed).u64(..half / 5);
        let scale = Scale { engine: story.engine, step, start: 0 };
        let mut theatre = Self {
            story,
            scale,
            offset,
            now: 0,
            server,
            actors: HashMap::new(),
            proxies: HashMap::new(),
            sent: HashMap::new(),
            recorder,
            register,
            late: None,
            dir,
        };
        let lease = i32::try_from(theatre.scale.lease(LEASE)).expect("leases are short");
        let scene = Scene { engine: story.engine, table: theatre.dir.path().join("table.db"), lease };
        if story.engine == Engine::Table {
            let ended = format!("CREATE TABLE lock (version INTEGER, ends INTEGER); INSERT INTO lock VALUES (0, {})", WALL - 1);
            let table = rusqlite::Connection::open(&scene.table).and_then(|table| table.execute_batch(&ended));
            table.expect("a table can be made");
        }
        let scene = serde_json::to_string(&scene).expect("a scene");
        theatre.actors = story.clients().into_iter().map(|who| (who, actor(lab, story, who, &scene))).collect();
        theatre
    }

    fn play(mut self) -> Shown {
        self.scale.start = nanos(BootTime::now().since_boot());
        for line in &self.story.lines {
            let (step, parts) = Story::parts(line);
            self.wait_for(step);
            for part in parts {
                if self.late.is_none() {
                    self.act(part);
                    // The look at the lock at the end may take longer than a step.
                    if !part.starts_with("the lock is") {
                        self.keep_up();
                    }
                }
            }
        }
        let story = self.story.lines.iter().map(|line| (*line).to_owned()).collect();
        Shown { story, starved: self.late, ..Shown::new(self.recorder.take_down()) }
    }

    /// Waits for the moment of a step.
    fn wait_for(&mut self, step: i16) {
        if self.late.is_some() {
            return;
        }
        self.now = step;
        let at = self.scale.at(step) + self.offset;
        std::thread::sleep(Duration::from_nanos(at.saturating_sub(boot())));
        self.keep_up();
    }

    /// Whatever is done in a step is done before the leases end that are to end before the next.
    fn keep_up(&mut self) {
        let time = nanos(self.scale.step / 2).min(self.offset.saturating_add(nanos(self.story.engine.patience())));
        if boot() > self.scale.at(self.now) + time {
            let (now, step, time) = (self.now, self.scale.step, Duration::from_nanos(time));
            self.late.get_or_insert_with(|| format!("step {now} took longer than {time:?} of {step:?}"));
        }
    }

    fn act(&mut self, part: &'static str) {
        if let Some((link, call)) = part.split_once(": ") {
            let (command, reply) = call.split_once(" -> ").unwrap_or_else(|| panic!("{part:?} tells no reply"));
            return self.call(link, command, reply);
        }
        let (who, does) = part.split_once(' ').expect("who does what");
        let words: Vec<&str> = does.split(' ').collect();
        match (who, &words[..]) {
            (link, ["runs", ..]) => {
                let proxy = &self.proxies[link];
                let before = proxy.replies();
                proxy.hold_replies();
                proxy.release_requests();
                proxy.wait_for_replies(before + 1, PATIENCE);
            }
            (link, ["hears", ..]) => {
                if let Some(proxy) = self.proxies.get(link) {
                    proxy.release_replies();
                }
                self.hear(link, &does["hears ".len()..]);
            }
            (who, ["writes", "with", "fence", fence, "->", ..]) => {
                let (register, fence) = (self.register.path().to_owned(), fence.parse().ok());
                let answer = self.ask(who, &Order::Write { register, who: who.to_owned(), fence });
                assert!(part.ends_with(&answer), "{}: {part}, and it is {answer}", self.story.id);
            }
            (who, ["is", "killed"]) => {
                let actor = self.actor(who);
                actor.process.kill();
                actor.lives = false;
                self.recorder.record(who, What::Died);
            }
            (who, ["is", "stopped"]) => self.signal(who, Signal::Stop, part),
            (who, ["goes", "on"]) => self.signal(who, Signal::Cont, part),
            (who, ["sleeps", ..]) => {
                // The process stands still, and its clock with it.
                self.signal(who, Signal::Stop, part);
                self.wait_for(self.now + 1);
                self.signal(who, Signal::Cont, part);
            }
            ("the", _) => self.suffer(part),
            (who, fact) => self.note(who, fact),
        }
    }

    fn call(&mut self, link: &'static str, command: &'static str, reply: &str) {
        let who = &link[..1];
        if !std::mem::replace(&mut self.actor(who).asked, true) {
            self.recorder.record(who, What::Ask { acquisition: 1, name: LOCK.to_owned() });
        }
        if self.story.is_on_the_way() && !self.proxies.contains_key(link) {
            self.proxies.insert(link, Proxy::start(self.server.addr()));
        }
        let to = self.proxies.get(link).map_or(self.server.addr(), Proxy::addr);
        let before = self.proxies.get(link).map(|proxy| (proxy.commands(), proxy.replies()));
        match (reply, self.proxies.get(link)) {
            ("late" | "lost", Some(proxy)) => proxy.hold_requests(),
            ("reply lost", Some(proxy)) => proxy.hold_replies(),
            _ => {}
        }
        let commands = self.scale.commands(command);
        self.sent.insert(link, command);
        self.ask(who, &Order::Send { link: link.to_owned(), to, commands });
        let Some((proxy, (commands, replies))) = self.proxies.get(link).zip(before) else { return self.hear(link, reply) };
        match reply {
            "late" => proxy.wait_for_commands(commands + 1, PATIENCE),
            "lost" | "reply lost" => {
                if reply == "lost" {
                    proxy.wait_for_commands(commands + 1, PATIENCE);
                } else {
                    proxy.wait_for_replies(replies + 1, PATIENCE);
                }
                proxy.cut();
                proxy.heal();
                self.hear(link, NO_REPLY);
            }
            reply => self.hear(link, reply),
        }
    }

    /// The server replies as the story tells. Anything else says that the story is not true.
    fn hear(&mut self, link: &str, told: &str) {
        let heard = self.ask(&link[..1], &Order::Hear { link: link.to_owned() });
        let heard = self.scale.told(self.sent[link], &heard);
        self.keep_up();
        if self.late.is_none() {
            assert_eq!(
                heard, told,
                "{}: in step {} the server (left) does not reply to {link} as the story has it",
                self.story.id, self.now
            );
        }
    }

    /// Records a conclusion of a client from a reply.
    fn note(&mut self, who: &str, fact: &[&str]) {
        let (acquisition, name, learnt) = (1, LOCK.to_owned(), boot());
        let number = |text: &str| text.parse::<i16>().unwrap_or_else(|_| panic!("{text} is no number"));
        // Half a step before, as leases do at the server.
        let end =
            |text: &str| learnt.saturating_add_signed(self.scale.nanos(number(text) - self.now)) - nanos(self.scale.step / 2);
        let grant = |until: Option<&str>, fence: Option<&str>| What::Grant {
            acquisition,
            name: name.clone(),
            weight: self.actors[who].weight,
            token: None,
            fence: fence.map(|fence| u64::from(number(fence).unsigned_abs())),
            until: until.map(end),
        };
        let what = match fact {
            ["holds"] => grant(None, None),
            ["holds", "until", until] => grant(Some(until), None),
            ["holds", "with", "fence", fence] => grant(None, Some(fence)),
            ["holds", "until", until, "with", "fence", fence] => grant(Some(until), Some(fence)),
            ["holds", "on"] => What::Valid { acquisition, until: None },
            ["holds", "on", "until", until] => What::Valid { acquisition, until: Some(end(until)) },
            ["loses"] => What::Lost { acquisition, why: "as it thinks".to_owned() },
            ["releases"] => What::Release { acquisition },
            ["has", "released"] => What::Released { acquisition, how: "as it thinks".to_owned() },
            ["waits"] => What::Queued { acquisition, name },
            ["gives", "up"] => What::Failed { acquisition, kind: Some("Busy".to_owned()), text: "held by another".to_owned() },
            _ => panic!("{}: {who} {} is nothing that can be played", self.story.id, fact.join(" ")),
        };
        self.recorder.add(Event { at: learnt, who: who.to_owned(), what });
    }

    /// Does something to the server, or looks at it at the end.
    fn suffer(&mut self, part: &'static str) {
        match part {
            "the lock is still taken" => return self.look(),
            "the lease still stands" => return assert_eq!(self.server.redis().cli("EXISTS lock"), "1", "it was lost in truth"),
            "the lock is granted to nobody" => return self.wait_in_vain(),
            "the server evicts the lock" => self.server.evict(),
            "the server is killed, and comes back empty" => self.server.restart_empty(),
            "the replica takes over" => self.server.fail_over(),
            other => match other.split(' ').collect::<Vec<_>>()[..] {
                ["the", "server's", "clock", "jumps", "by", steps] => {
                    let steps = steps.parse().expect("a number of steps");
                    self.server.redis().shift_clock(self.scale.milliseconds(steps));
                }
                ["the", "subscription", ..] => {
                    self.server.redis().cli("CLIENT KILL TYPE pubsub");
                }
                _ => panic!("{}: {part} cannot be played", self.story.id),
            },
        }
        self.recorder.record("lab", What::Fault { text: part.to_owned() });
        if part.contains("comes back") || part.contains("takes over") {
            for actor in self.actors.values_mut().filter(|actor| actor.lives) {
                actor.ask(&Order::HangUp);
            }
        }
    }

    /// Looks whether the lock is free.
    fn look(&mut self) {
        self.recorder.record("lab", What::FreeDue { name: LOCK.to_owned(), within: nanos(self.scale.step / 4) });
        let server = self.server.redis();
        let ttl = server.command(&["PTTL", LOCK]).int();
        let is_text = server.command(&["TYPE", LOCK]) == "string";
        let value = if is_text { server.command(&["GET", LOCK]).text() } else { "several".to_owned() };
        // A timestamp ends by itself, and has ended when it lies in the past.
        let ends = value.parse::<i64>().ok().filter(|ends| *ends >= WALL);
        let now = WALL + i64::try_from((boot() - self.scale.start) / 1_000_000).unwrap_or(0);
        let is_held = ttl != -2 && self.story.free != Some(&value) && ends.is_none_or(|ends| ends >= now);
        let forever = is_held && ttl == -1 && ends.is_none();
        self.recorder.record("lab", What::Seen { name: LOCK.to_owned(), holder: is_held.then_some(value), forever });
    }

    /// Waits longer than a lease: a client that polls would have it.
    fn wait_in_vain(&mut self) {
        let within = nanos(self.scale.step / 4) + 4 * nanos(self.scale.step);
        self.recorder.record("lab", What::GrantDue { name: LOCK.to_owned(), within });
        let is_grant = |event: &Event| matches!(event.what, What::Grant { .. }) && event.who != "A";
        let _ = self.recorder.wait_within(Duration::from_nanos(within), is_grant);
    }

    fn signal(&mut self, who: &str, signal: Signal, part: &str) {
        self.actor(who).process.signal(signal).expect("the process runs");
        self.recorder.record("lab", What::Fault { text: part.to_owned() });
    }

    fn actor(&mut self, who: &str) -> &mut Actor {
        self.actors.get_mut(who).unwrap_or_else(|| panic!("{who} is no client"))
    }

    fn ask(&mut self, who: &str, order: &Order) -> String {
        self.actor(who).ask(order)
    }
}

fn actor(lab: &Lab, story: &Story, who: &str, scene: &str) -> Actor {
    let mut command = lab.worker(&["museum", scene]);
    let mut process = Spawned::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("a process starts");
    let to = process.child().stdin.take().expect("piped");
    let from = BufReader::new(process.child().stdout.take().expect("piped"));
    let weight = story.weights.iter().find(|(other, _)| *other == who).map_or(1, |(_, weight)| *weight);
    Actor { process, to, from, lives: true, asked: false, weight }
}

fn boot() -> u64 {
    nanos(BootTime::now().since_boot())
}
