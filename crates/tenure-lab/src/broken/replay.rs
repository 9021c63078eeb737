//! Plays the story that the model found, on a real server with real processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use tenure::BootTime;
use tenure_testkit::history::{Event, History, Rule, What, nanos};
use tenure_testkit::register::Register;
use tenure_testkit::{Proxy, Recorder, RedisServer, Signal, Spawned};

use super::case::Case;
use super::command::{LOCK, Value};
use super::engine::Server;
use super::player::{Answer, LET_IN, Order, REFUSED};
use super::program::{Client, Tick, name};
use super::schemes::TTL;
use super::wire::Scale;
use super::world::{Action, Move, Said, World};
use crate::Lab;

const PATIENCE: Duration = Duration::from_secs(10);
/// A step is doubled until the machine keeps up, or a step is this long.
const SLOWEST: Duration = Duration::from_secs(1);

/// The history, and why it may mean nothing.
pub(crate) struct Played {
    pub(crate) history: History,
    pub(crate) starved: Option<String>,
}

/// Plays `path`, more slowly each time the machine is too slow for it.
pub(crate) fn replay(lab: &Lab, case: &Case, path: &[(World, Action)], seed: u64) -> Played {
    let mut step = case.setting.scheme.engine.step();
    loop {
        let played = Theatre::open(lab, case, path, seed, step).play(path);
        if played.starved.is_none() || step >= SLOWEST {
            return played;
        }
        step *= 2;
    }
}

/// The process of one client.
struct Actor {
    process: Spawned,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// In front of each lane, where something is to happen on the way.
    proxies: Vec<Proxy>,
    lives: bool,
}

struct Theatre<'a> {
    case: &'a Case,
    scale: Scale,
    server: Server,
    replica: Option<(RedisServer, Proxy)>,
    actors: Vec<Actor>,
    recorder: Recorder,
    dir: tempfile::TempDir,
    /// Where in a step the moves are made, in nanoseconds from its beginning.
    offset: u64,
    register: Register,
    late: Option<String>,
}

impl<'a> Theatre<'a> {
    fn open(lab: &Lab, case: &'a Case, path: &[(World, Action)], seed: u64, step: Duration) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let has = |is_it: fn(&Action) -> bool| path.iter().any(|(_, action)| is_it(action));
        let on_the_way = has(|action| matches!(action, Action::Send(_) | Action::LoseReply(_) | Action::LoseRequest(_)));
        let server = Server::start(case.setting.scheme.engine, has(|action| *action == Action::Jump));
        let replica = has(|action| *action == Action::Failover).then(|| replica(server.redis()));
        let history = History {
            capacity: case.setting.capacity,
            keeps: case.breaks == Some(Rule::FalseLoss),
            ..History::new(case.id, seed)
        };
        let scale = Scale { start: 0, step, wall: 1_700_000_000_000, nonce: random.u64(..) };
        // Between a tenth and a fifth of a step: the rest is for the moves, and half a step ends
        // every lease.
        let offset = scale.half() / 5 + random.u64(..scale.half() / 5);
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let (actors, recorder) = (Vec::new(), Recorder::new(history));
        crate::run::keep(&recorder);
        let register = Register::open(recorder.clone());
        register.compares(case.setting.scheme.resource.unwrap_or_default());
        let mut theatre = Self { case, scale, server, replica, actors, recorder, dir, offset, register, late: None };
        theatre.actors = (0..case.setting.clients).map(|who| theatre.actor(lab, who, on_the_way)).collect();
        theatre.connect_all();
        theatre
    }

    fn actor(&self, lab: &Lab, who: u8, on_the_way: bool) -> Actor {
        let scale = serde_json::to_string(&self.scale).expect("a scale");
        let mut command = lab.worker(&["broken-lock", self.case.id, &who.to_string(), &scale]);
        let mut process = Spawned::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("a worker starts");
        let to = process.child().stdin.take().expect("piped");
        let from = BufReader::new(process.child().stdout.take().expect("piped"));
        let proxies = if on_the_way { 2 } else { 0 };
        // It counts commands of Redis.
        let proxies = (0..proxies).map(|_| Proxy::start(self.server.redis().addr())).collect();
        Actor { process, to, from, proxies, lives: true }
    }

    fn connect_all(&mut self) {
        for who in 0..self.case.setting.clients {
            let actor = &self.actors[usize::from(who)];
            if !actor.lives {
                continue;
            }
            let lane = |n: usize| actor.proxies.get(n).map_or(self.server.addr(), Proxy::addr);
            let (lanes, file) = ([lane(0), lane(1)], self.dir.path().join("table.db"));
            self.ask(who, &Order::Connect { lanes, file });
        }
    }

    fn play(mut self, path: &[(World, Action)]) -> Played {
        self.scale.start = nanos(BootTime::now().since_boot());
        let mut end = 0;
        for (world, action) in path {
            let mut next = world.clone();
            let said = next.apply(&self.case.setting, *action);
            self.wait_for(world.now);
            self.act(*action, world, &said, &next);
            if self.late.is_some() {
                break;
            }
            end = next.now;
        }
        self.wait_for(end);
        self.look();
        Played { history: self.recorder.take_down(), starved: self.late }
    }

    /// Waits for the moment of a step, and notes when it has been missed.
    fn wait_for(&mut self, now: Tick) {
        let at = self.scale.at(now) + self.offset;
        let is = || nanos(BootTime::now().since_boot());
        std::thread::sleep(Duration::from_nanos(at.saturating_sub(is())));
        self.keep_up(now);
    }

    /// Whatever is done in a step is done before the leases end that are to end before the next.
    fn keep_up(&mut self, now: Tick) {
        let is = nanos(BootTime::now().since_boot());
        let time = self.scale.half().min(self.offset.saturating_add(nanos(self.case.setting.scheme.engine.patience())));
        if is > self.scale.at(now) + time {
            let time = Duration::from_nanos(time);
            self.late.get_or_insert_with(|| format!("step {now} took longer than {time:?} of {:?}", self.scale.step));
        }
    }

    fn act(&mut self, action: Action, world: &World, said: &[Said], next: &World) {
        let now = world.now;
        match action {
            Action::Step(step) => {
                self.send(step, now);
                self.hear(step.who, step.lane, now, said, next);
            }
            Action::Send(step) => self.send_and_hold(step, now),
            Action::Run(who, lane) => {
                let proxy = self.proxy(Move { who, lane, begin: None });
                let before = proxy.replies();
                proxy.hold_replies();
                proxy.release_requests();
                proxy.wait_for_replies(before + 1, PATIENCE);
            }
            Action::Hear(who, lane) => {
                self.proxy(Move { who, lane, begin: None }).release_replies();
                self.hear(who, lane, now, said, next);
            }
            Action::LoseReply(step) => {
                let proxy = self.proxy(step);
                let before = proxy.replies();
                proxy.hold_replies();
                self.send(step, now);
                self.proxy(step).wait_for_replies(before + 1, PATIENCE);
                self.lose(step, now, said, next);
            }
            Action::LoseRequest(step) => {
                self.send_and_hold(step, now);
                self.lose(step, now, said, next);
            }
            Action::Notify(who) => {
                let answer = self.ask(who, &Order::Listen { now });
                self.compare(&answer, who, None, next);
            }
            Action::EndWork(who) => {
                self.ask(who, &Order::EndWork);
            }
            Action::Write(who) => self.write(who, said, next),
            Action::Crash(who) => {
                let actor = &mut self.actors[usize::from(who)];
                actor.process.kill();
                actor.lives = false;
                self.recorder.record(name(who), What::Died);
            }
            Action::Sleep(who) => self.sleep(who, now),
            Action::Stop(who) => self.signal(who, Signal::Stop, "is stopped"),
            Action::Continue(who) => self.signal(who, Signal::Cont, "goes on"),
            Action::Evict => {
                self.server.evict();
                self.recorder.record("lab", What::Fault { text: "the server is full, and evicts the lock".to_owned() });
            }
            Action::Deafen(who) => {
                self.server.redis().cli("CLIENT KILL TYPE pubsub");
                self.recorder.record("lab", What::Fault { text: format!("the subscription of {} is lost", name(who)) });
            }
            Action::Flush | Action::Failover | Action::Jump => self.break_server(action),
            Action::Tick => {}
        }
        self.keep_up(next.now);
    }

    /// The command comes to the proxy, and no further.
    fn send_and_hold(&mut self, step: Move, now: Tick) {
        let proxy = self.proxy(step);
        proxy.hold_requests();
        let before = proxy.commands();
        self.send(step, now);
        self.proxy(step).wait_for_commands(before + 1, PATIENCE);
    }

    fn break_server(&mut self, action: Action) {
        let text = match action {
            Action::Failover => {
                let (replica, _proxy) = self.replica.take().expect("made at the beginning");
                self.server.redis().kill();
                replica.promote();
                self.server = Server::Redis(replica);
                // It gets a replica of its own, as after every failover.
                let proxy = Proxy::start_opaque(self.server.addr());
                self.replica = Some((RedisServer::builder().replica_at(proxy.addr()).start(), proxy));
                "the replica takes over"
            }
            Action::Jump => {
                let jump = self.case.setting.faults.jump;
                let step = i64::try_from(self.scale.step.as_millis()).expect("steps are short");
                self.server.redis().shift_clock(i64::from(jump) * step);
                "the server's clock jumps"
            }
            _ => {
                self.server.restart_empty();
                "the server is killed, and comes back empty"
            }
        };
        self.recorder.record("lab", What::Fault { text: text.to_owned() });
        if action != Action::Jump {
            self.connect_all();
        }
    }

    /// Its machine sleeps for a step: the process stands still, and its clock with it.
    fn sleep(&mut self, who: u8, now: Tick) {
        self.signal(who, Signal::Stop, "is stopped");
        self.wait_for(now + 1);
        self.signal(who, Signal::Cont, "goes on");
        self.ask(who, &Order::Slept { now: now + 1 });
    }

    fn signal(&mut self, who: u8, signal: Signal, text: &str) {
        self.actors[usize::from(who)].process.signal(signal).expect("the worker runs");
        self.recorder.record("lab", What::Fault { text: format!("the process of {} {text}", name(who)) });
    }

    fn send(&mut self, step: Move, now: Tick) {
        let Move { who, lane, begin } = step;
        self.ask(who, &Order::Send { lane, begin, now });
    }

    fn hear(&mut self, who: u8, lane: usize, now: Tick, said: &[Said], next: &World) {
        let answer = self.ask(who, &Order::Hear { lane, now });
        let reply = said.iter().find_map(|said| match said {
            Said::Ran(_, _, reply) | Said::Hears(_, reply) => Some(reply.to_string()),
            Said::Lost(..) => Some(Value::Broken.to_string()),
            _ => None,
        });
        self.compare(&answer, who, reply.as_deref(), next);
    }

    fn lose(&mut self, step: Move, now: Tick, said: &[Said], next: &World) {
        let proxy = self.proxy(step);
        proxy.cut();
        proxy.heal();
        self.hear(step.who, step.lane, now, said, next);
    }

    /// The server has replied as in the model, and the client has become what it became there.
    /// Anything else says that the model is not what the server does.
    fn compare(&mut self, answer: &Answer, who: u8, reply: Option<&str>, next: &World) {
        let client: &Client = &next.clients[usize::from(who)];
        let (id, now) = (self.case.id, next.now);
        self.keep_up(now);
        if self.late.is_none() {
            assert_eq!(
                answer.reply.as_deref(),
                reply,
                "{id}: in step {now} the server (left) does not reply to {client} as the model does"
            );
            assert_eq!(answer.client, format!("{client:?}"), "{id}: in step {now} {client} has not become what the model says");
        }
    }

    /// The resource looks at a fence as the scheme says.
    fn write(&mut self, who: u8, said: &[Said], next: &World) {
        let answer = self.ask(who, &Order::Write { register: self.register.path().to_owned() });
        let outcome = said.iter().find_map(|said| match said {
            Said::Wrote(_, _, accepted) => Some(if *accepted { LET_IN } else { REFUSED }),
            _ => None,
        });
        self.compare(&answer, who, outcome, next);
    }

    /// Looks at the end of the story, if it is the fault.
    fn look(&mut self) {
        let lock = || LOCK.to_owned();
        let within = self.scale.half() / 2;
        match self.case.breaks {
            Some(Rule::Leak) => {
                self.recorder.record("lab", What::FreeDue { name: lock(), within });
                let server = self.server.redis();
                let ttl = server.command(&["PTTL", LOCK]).int();
                let value = server.command(&["TYPE", LOCK]) == "string";
                let value = if value { server.command(&["GET", LOCK]).text() } else { "several".to_owned() };
                // A timestamp ends by itself, and has ended when it lies in the past.
                let ends = value.parse::<i64>().ok().filter(|ends| *ends >= self.scale.wall);
                let now = i64::try_from((nanos(BootTime::now().since_boot()) - self.scale.start) / 1_000_000).unwrap_or(0);
                let is_free = self.case.setting.scheme.free.is_some_and(|free| free.to_string() == value);
                let is_held = ttl != -2 && !is_free && ends.is_none_or(|ends| ends >= self.scale.wall + now);
                let forever = is_held && ttl == -1 && ends.is_none();
                self.recorder.record("lab", What::Seen { name: lock(), holder: is_held.then_some(value), forever });
            }
            Some(Rule::NotGranted) => {
                // Longer than a lease: a client that polls would have it.
                let within = within + 4 * self.scale.half() * u64::from(TTL.unsigned_abs());
                self.recorder.record("lab", What::GrantDue { name: lock(), within });
                let is_grant = |event: &Event| matches!(event.what, What::Grant { .. }) && event.who != name(0);
                let _ = self.recorder.wait_within(Duration::from_nanos(within), is_grant);
            }
            Some(Rule::FalseLoss) => assert_eq!(self.server.redis().cli("EXISTS lock"), "1", "it was lost in truth"),
            _ => {}
        }
    }

    fn proxy(&self, step: Move) -> &Proxy {
        &self.actors[usize::from(step.who)].proxies[step.lane]
    }

    fn ask(&mut self, who: u8, order: &Order) -> Answer {
        let Actor { to, from, .. } = &mut self.actors[usize::from(who)];
        writeln!(to, "{}", serde_json::to_string(order).expect("an order")).expect("the worker listens");
        let mut line = String::new();
        from.read_line(&mut line).expect("the worker answers");
        let answer: Answer = serde_json::from_str(&line).unwrap_or_else(|error| panic!("the worker said {line:?}: {error}"));
        for (at, what) in &answer.events {
            self.recorder.add(Event { at: *at, who: name(who), what: what.clone() });
        }
        answer
    }
}

/// A replica that has everything up to now, and hears nothing from now on, though its primary does
/// not know.
fn replica(primary: &RedisServer) -> (RedisServer, Proxy) {
    let proxy = Proxy::start_opaque(primary.addr());
    let replica = RedisServer::builder().replica_at(proxy.addr()).start();
    proxy.black_hole();
    (replica, proxy)
}
