//! The stories, and how they are written.
//!
//! ```text
//! == ID | the lock | the fault | the rule that breaks
//! with memcached, capacity 2, C takes 2, compares equality, free 0
//! 0 A: SET lock token-A PX lease NX -> OK; A holds until 2
//! 3 A releases; A: DEL lock -> 1
//! ```
//!
//! A line begins with the step in which its parts happen. `A': ...` goes over a second connection
//! of A. A reply is `late`, `lost` (the command was) or `reply lost`. In a command, `t3` is the wall
//! clock of a right host in step 3 and `lease` the ttl of two steps; `span` is as long, by a
//! client's clock. `script NAME KEY ...` is a script of `scripts.lua`.

use tenure_testkit::history::Rule;
use tenure_testkit::register::Comparison;

use super::server::Engine;

const FILES: [&str; 4] = [
    include_str!("stories/values.txt"),
    include_str!("stories/tokens.txt"),
    include_str!("stories/kinds.txt"),
    include_str!("stories/engines.txt"),
];
const SCRIPTS: &str = include_str!("scripts.lua");

/// A lock, a fault, and what comes of it.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub(super) id: &'static str,
    pub(super) lock: &'static str,
    pub(super) fault: &'static str,
    pub(super) breaks: Rule,
    pub(super) engine: Engine,
    /// How much of the name there is, and who takes how much of it.
    pub(super) capacity: u32,
    pub(super) weights: Vec<(&'static str, u32)>,
    /// How the guarded resource looks at a fence.
    pub(super) compares: Comparison,
    /// The value of a free name whose key stays.
    pub(super) free: Option<&'static str>,
    pub(super) lines: Vec<&'static str>,
}

/// Every story.
pub(super) fn all() -> Vec<Story> {
    FILES.iter().flat_map(|file| file.split("== ").skip(1)).map(Story::read).collect()
}

/// The Lua of a script.
pub(super) fn script(name: &str) -> &'static str {
    let mut scripts = SCRIPTS.split("\n-- ").map(|script| script.split_once('\n').expect("a name and a script"));
    scripts.find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no script is called {name}")).1
}

impl Story {
    fn read(text: &'static str) -> Self {
        let mut lines = text.lines().filter(|line| !line.is_empty()).peekable();
        let head: Vec<_> = lines.next().expect("a head").split(" | ").collect();
        let [id, lock, fault, breaks] = head[..] else { panic!("{head:?} is no head of a story") };
        let breaks = serde_json::from_value(breaks.into()).unwrap_or_else(|_| panic!("{id}: {breaks} is no rule"));
        let mut story = Self {
            id,
            lock,
            fault,
            breaks,
            engine: Engine::Redis,
            capacity: 1,
            weights: Vec::new(),
            compares: Comparison::Order,
            free: None,
            lines: Vec::new(),
        };
        if let Some(with) = lines.next_if(|line| line.starts_with("with ")) {
            with["with ".len()..].split(", ").for_each(|setting| story.set(setting));
        }
        story.lines = lines.collect();
        story
    }

    fn set(&mut self, setting: &'static str) {
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{}: {text} is no number", self.id));
        match setting.split(' ').collect::<Vec<_>>()[..] {
            ["table"] => self.engine = Engine::Table,
            ["memcached"] => self.engine = Engine::Memcached,
            ["zookeeper"] => self.engine = Engine::ZooKeeper,
            ["capacity", capacity] => self.capacity = number(capacity),
            [who, "takes", weight] => self.weights.push((who, number(weight))),
            ["compares", "equality"] => self.compares = Comparison::Equality,
            ["compares", "nothing"] => self.compares = Comparison::Nothing,
            ["free", value] => self.free = Some(value),
            _ => panic!("{}: {setting} is no setting", self.id),
        }
    }

    /// The parts of a line, behind its step.
    pub(super) fn parts(line: &'static str) -> (i16, impl Iterator<Item = &'static str>) {
        let (step, parts) = line.split_once(' ').expect("a step and its parts");
        (step.parse().unwrap_or_else(|_| panic!("{line:?} does not begin with a step")), parts.split("; "))
    }

    /// A, B and so on, as far as anybody sends anything.
    pub(super) fn clients(&self) -> Vec<&'static str> {
        let told = |who: &&str| self.lines.iter().any(|line| line.contains(&format!(" {who}: ")));
        ["A", "B", "C"].into_iter().filter(told).collect()
    }

    /// Whether something happens on the way to the server.
    pub(super) fn is_on_the_way(&self) -> bool {
        self.lines.iter().any(|line| line.contains("-> late") || line.contains(" lost"))
    }
}
