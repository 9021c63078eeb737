//! Outcomes as a row, as JSON, and as the page `docs/lab.md`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::history::timeline::{picture, wrapped};
use tenure_testkit::history::{Finding, Verdict};

use crate::models::{Expected, Model, Searched};
use crate::{Item, Kind, Outcome, counterparts};

/// An outcome in words: the verdict and whether that was expected, what was done, and how to have it again.
pub fn row(outcome: &Outcome) -> String {
    let Outcome { item, seed, verdict, ok, took, .. } = outcome;
    let verdict = match (verdict, ok) {
        (Verdict::Holds, true) => "holds".to_owned(),
        (_, true) => format!("{verdict}, as expected"),
        (_, false) if *verdict == item.expected => format!("{}, AND MORE", verdict.to_string().to_uppercase()),
        (_, false) => format!("{}, NOT {}", verdict.to_string().to_uppercase(), item.expected),
    };
    let tier = item.tier.map_or_else(String::new, |tier| format!("tier {tier}, "));
    let about = format!("{}  ({tier}{:.1} s, seed {seed})", item.id, took.as_secs_f64());
    wrapped(&format!("{verdict:19}  "), &about, 21) + &what(item)
}

/// An item as `list` has it.
pub fn listed_as_text(item: &Item) -> String {
    let tier = item.tier.map_or_else(String::new, |tier| format!(", tier {tier}"));
    wrapped("", &format!("{}  ({}{tier})", item.id, item.expected), 4) + &what(item)
}

fn what(item: &Item) -> String {
    wrapped("    ", &format!("{}: {}", item.subject, item.fault), 4)
}

/// Reports an outcome in full: the story, the picture, the findings, how to make the run again.
pub fn account(outcome: &Outcome) -> String {
    let mut text = String::new();
    if let Some(trouble) = &outcome.trouble {
        text.push_str(&wrapped("", trouble, 4));
    }
    if let Some(shown) = &outcome.shown {
        for line in &shown.story {
            text.push_str(&wrapped("  ", line, 6));
        }
        text.push_str(&picture(&shown.history));
    }
    let _ = writeln!(text, "again: tenure lab run {} --seed {}", outcome.item.id, outcome.seed);
    text
}

/// An outcome for programs.
pub fn to_json(outcome: &Outcome) -> Value {
    let Outcome { item, seed, verdict, ok, .. } = outcome;
    let Item { id, kind, tier, expected, .. } = item;
    json!({ "id": id, "kind": kind, "tier": tier, "verdict": verdict, "expected": expected, "ok": ok, "seed": seed })
}

/// Lists an item, for programs.
pub fn listed(item: &Item) -> Value {
    let Item { id, kind, subject, fault, tier, expected, because, .. } = item;
    json!({ "id": id, "kind": kind, "subject": subject, "fault": fault, "tier": tier, "expected": expected, "because": because })
}

/// Lists the delay of each reported loss after it was due, for each scenario that had some.
pub fn told_after(outcomes: &[Outcome]) -> String {
    let mut spans: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.ok) {
        let told = outcome.shown.iter().flat_map(|shown| shown.told_after.iter().copied());
        spans.entry(&outcome.item.id).or_default().extend(told);
    }
    spans.retain(|_, spans| !spans.is_empty());
    let width = spans.keys().map(|id| id.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (id, spans) in &mut spans {
        spans.sort_unstable();
        let [least, middle, most] = [0, spans.len() / 2, spans.len() - 1].map(|index| spans[index].as_millis());
        let _ = writeln!(text, "{id:width$}  {:>4} times  {least:>5}  {middle:>5}  {most:>5} ms", spans.len());
    }
    if text.is_empty() { text } else { format!("{:width$}              least median   most\n{text}", "") }
}

/// The page that a run makes: what was done to which lock, what came of it, and how.
pub fn page(outcomes: &[Outcome], models: &[(Model, Searched)]) -> String {
    let mut text = INTRODUCTION.to_owned();
    overview(&mut text, outcomes);
    scenarios(&mut text, outcomes);
    broken_locks(&mut text, outcomes);
    protocol(&mut text, models);
    text
}

const INTRODUCTION: &str = "\
# The lab

Made by `tenure lab run --report docs/lab.md`; do not edit.

The lab breaks locks in front of you. `tenure lab list` lists them. `tenure lab run A1/crash` shows
one with its story and a timeline. `tenure lab run` runs all of them. The lab starts servers and
processes of its own, stops them and kills them.

- **holds**: no two processes regarded themselves as the holder at one time. Fences rose. Losses were
  reported in time. The name came free in time.
- **fenced**: two overlapped, or a stale holder wrote on. The later one's fence was larger. The
  resource compares fences, so it was never damaged.
- **broken**: something went wrong that nothing repairs. Of our own stores, only the holes that
  [GUARANTEES.md](../GUARANTEES.md) names are broken.

One checker judges all of them. It sees the events of every process, on one clock: asks, grants,
validity, losses, writes. It finds every broken lock below. That is the evidence that its verdict on
our own stores is worth something.
";

const QUORUM: &str = "
Rows of `quorum/` do the faults of `redis/` to one or two of five servers, and to three; in rows of
36 there are three servers. Random holders on such servers are a soak. It kills servers, empties
them, loses replies and kills clients. Or one server after another is away. It runs on every other
store as well, but Sentinel and Cluster:

```sh
tenure lab run quorum/ --repeat 50 --jobs 8               # a quarter of an hour on two cores
tenure lab soak --store quorum --grants 1000000 --for 1h  # fences in order, over a million grants
tenure lab soak --store quorum --one-away 3 --for 30m     # a call that fails while a majority votes is a finding
```
";

const SCHEMES: &str = "
## In the schemes of others

The same faults, with tenure on the keys of other clients (`scheme=`). In rows called `A...`, a
program beside ours sends the commands of an article itself.

- Most schemes have no fences. What is *fenced* above is a hole there.
- In rows with `their` in the name, the other side takes away a lease of ours. No client of ours can
  prevent that. Ours reports it.
";

const BROKEN_LOCKS: &str = "
## Locks as others write them

Each is a story: what clients send, what the server replies, and what they take that to mean. Real
processes play it on a real server, and each reply is compared with that of the story. A, B and C
are processes; `A'` is a second connection of A. A line begins with its step. A step is a moment,
and a lease lasts two steps. `t3` is the time of step 3 on a right clock.

- On Redis a step takes a tenth of a second, and PEXPIRE stands for EXPIRE. A `script` is one of
  [scripts.lua](../crates/tenure-lab/src/museum/scripts.lua).
- memcached counts in whole seconds, and its clock is up to two seconds behind. A step takes 5 s
  there.
- On ZooKeeper a session lasts as long as a lease. A step takes 3 s there. A waiter asks for the
  children instead of watching the node in front of its own. The fence in a story is the place of
  a node, which has the order of their czxids.

";

const PROTOCOL: &str = "
## Our own protocol, in every order

Every order of sends, executions, losses, delays, repeats, crashes and ticks within the bounds.
First the protocol as it stands, then without each of its rules. The shortest story shows what a rule
is for.

";

/// Faults, some of the locks that it breaks, and tenure's row on one Redis.
const AT_A_GLANCE: [(&str, &[&str], &str); 8] = [
    ("work outlasts the lease", &["A1/late-release", "A6/long-work", "A7/blind-expire"], "redis/01-holder-paused"),
    ("killed", &["A1/crash", "A3/two-adopt", "semaphore/no-leases"], "redis/03-killed-at-each-step"),
    ("a reply is lost", &["rslock/error-is-busy", "A4/equal-milliseconds"], "redis/06-reply-lost"),
    ("a command is lost", &["redisson/errors-are-logged"], "redis/05-request-lost"),
    ("a command is late", &["A4/late-release", "A7/late-renewal"], "redis/07-late-acquire"),
    ("a host's clock is wrong", &["A4/fast-host", "A4/slow-host", "row/application-clock"], "redis/23-wall-clock-set"),
    ("the server's clock jumps", &["A6/clock-jump"], "redis/21-clock-ahead"),
    ("the server loses its data", &["A6/data-lost", "C1/failover", "fence/incr"], "redis/11-killed-without-persistence"),
];

fn overview(text: &mut String, outcomes: &[Outcome]) {
    text.push_str(
        "\n## At a glance\n\nWhat goes wrong, some of the locks that it breaks, and what comes of it with tenure on one \
         Redis.\n\n| what goes wrong | breaks | **tenure**, one Redis |\n|---|---|---|\n",
    );
    for (what, broken, ours) in AT_A_GLANCE {
        let broken: Vec<_> = broken.iter().map(|id| format!("[{id}](#{})", anchor(id))).collect();
        let ours = outcomes.iter().find(|outcome| outcome.item.id == ours);
        let ours = ours.map_or_else(|| "-".to_owned(), |outcome| outcome.verdict.to_string());
        let _ = writeln!(text, "| {what} | {} | {ours} |", broken.join(", "));
    }
}

fn scenarios(text: &mut String, outcomes: &[Outcome]) {
    text.push_str("\n## Our own stores under faults\n");
    rows(text, of(outcomes, Kind::Scenario).filter(|outcome| !in_a_dialect(outcome)));
    text.push_str(QUORUM);
    text.push_str(SCHEMES);
    rows(text, of(outcomes, Kind::Scenario).filter(|outcome| in_a_dialect(outcome)));
    let told = told_after(outcomes);
    if !told.is_empty() {
        let _ = write!(text, "\nDelay of each reported loss after it was due, in this run:\n\n```text\n{told}```\n");
    }
}

fn in_a_dialect(outcome: &Outcome) -> bool {
    const OURS: [&str; 9] =
        ["redis/", "quorum/", "sqlite/", "memory/", "postgres/", "mariadb/", "etcd/", "memcached/", "zookeeper/"];
    !OURS.iter().any(|store| outcome.item.id.starts_with(store))
}

fn rows<'a>(text: &mut String, outcomes: impl Iterator<Item = &'a Outcome>) {
    text.push_str("\n| id | what is done | tier | verdict | seed |\n|---|---|---|---|---|\n");
    for outcome in outcomes {
        let Item { id, fault, because, .. } = &outcome.item;
        let tier = outcome.item.tier();
        let because = because.map_or_else(String::new, |rule| format!(": {rule}"));
        let _ = writeln!(text, "| `{id}` | {fault} | {tier} | {}{because} | {} |", outcome.verdict, outcome.seed);
    }
}

fn broken_locks(text: &mut String, outcomes: &[Outcome]) {
    text.push_str(BROKEN_LOCKS);
    text.push_str("| id | the lock | what happens | verdict | seed | ours in its place |\n|---|---|---|---|---|---|\n");
    for outcome in of(outcomes, Kind::BrokenLock) {
        let Item { id, subject, fault, because, .. } = &outcome.item;
        let because = because.map_or_else(String::new, |rule| format!(": {rule}"));
        let _ = writeln!(
            text,
            "| [`{id}`](#{}) | {subject} | {fault} | {}{because} | {} | {} |",
            anchor(id),
            outcome.verdict,
            outcome.seed,
            ours(id, outcomes)
        );
    }
    text.push_str("\n### Their stories\n");
    for outcome in of(outcomes, Kind::BrokenLock) {
        let Item { id, subject, fault, .. } = &outcome.item;
        let story = outcome.shown.iter().flat_map(|shown| &shown.story).fold(String::new(), |all, line| all + line + "\n");
        let found = outcome.findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("; ");
        let _ = write!(text, "\n#### {id}\n\n{subject}. {fault}.\n\n```text\n{story}```\n\nFound: {found}.\n");
    }
}

/// Verdicts on the rows that put our own client in the place of a broken lock.
fn ours(lock: &str, outcomes: &[Outcome]) -> String {
    let verdict = |id: &str| outcomes.iter().find(|outcome| outcome.item.id == id).map(|outcome| outcome.verdict.to_string());
    let rows = counterparts::of(lock).iter().map(|id| format!("`{id}` {}", verdict(id).unwrap_or_default()));
    rows.collect::<Vec<_>>().join(", ")
}

fn protocol(text: &mut String, models: &[(Model, Searched)]) {
    text.push_str(PROTOCOL);
    text.push_str("| model | bounds | states | verdict |\n|---|---|---|---|\n");
    for (model, searched) in models {
        let verdict = if searched.broken.is_some() { "broken" } else { "holds" };
        let _ = writeln!(text, "| {} | {} | {} | {verdict} |", model.of, model.bounds, searched.states);
    }
    for (model, searched) in models {
        let (Expected::Breaks(promise), Some(story)) = (model.expected, &searched.counterexample) else { continue };
        let story = story.iter().fold(String::new(), |all, line| all + line + "\n");
        let _ = write!(text, "\n#### {}\n\n{}. Broken: {}.\n\n```text\n{story}```\n", model.id, model.of, promise.words());
    }
}

fn of(outcomes: &[Outcome], kind: Kind) -> impl Iterator<Item = &Outcome> {
    outcomes.iter().filter(move |outcome| outcome.item.kind == kind)
}

/// As GitHub makes one of a heading.
fn anchor(id: &str) -> String {
    id.to_lowercase().chars().filter(|c| c.is_alphanumeric() || *c == '-').collect()
}
