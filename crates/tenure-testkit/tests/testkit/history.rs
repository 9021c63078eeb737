//! The checker sees each thing that can go wrong, and nothing where nothing did; a history survives the disk.

use tenure_testkit::History;
use tenure_testkit::history::{At, Event, Rule, Verdict, What, check};

/// A history that is written down by hand; times are small numbers.
#[derive(Clone)]
struct Story(History);

impl Story {
    fn new() -> Self {
        Self(History::new("by hand", 7))
    }

    fn at(mut self, at: At, who: &str, what: What) -> Self {
        self.0.events.push(Event { at, who: who.to_owned(), what });
        self
    }

    fn grant(self, at: At, who: &str, fence: u64, until: Option<At>) -> Self {
        self.weighs(at, who, 1, Some(fence), until)
    }

    fn weighs(self, at: At, who: &str, weight: u32, fence: Option<u64>, until: Option<At>) -> Self {
        let name = "x".to_owned();
        let ask = What::Ask { acquisition: 1, name: name.clone() };
        let grant = What::Grant { acquisition: 1, name, weight, token: Some(who.to_owned()), fence, until };
        self.at(at - 1, who, ask).at(at, who, grant)
    }

    fn release(self, at: At, who: &str) -> Self {
        self.at(at, who, What::Release { acquisition: 1 })
    }

    fn write(self, at: At, who: &str, fence: u64, read: u64, accepted: bool) -> Self {
        self.at(at, who, What::Write { acquisition: 1, fence: Some(fence), read, wrote: read + 1, accepted })
    }

    fn rules(&self) -> Vec<Rule> {
        check(&self.0).into_iter().map(|finding| finding.rule).collect()
    }

    fn verdict(&self) -> Verdict {
        Verdict::of(&self.0, &check(&self.0))
    }
}

fn due(name: &str, within: u64) -> [What; 3] {
    let name = || name.to_owned();
    [What::LossDue { name: name(), within }, What::GrantDue { name: name(), within }, What::FreeDue { name: name(), within }]
}

#[test]
fn one_after_another_holds() {
    let story = Story::new().grant(10, "A", 1, None).release(20, "A").grant(20, "B", 2, Some(40)).grant(40, "C", 3, None);
    assert_eq!((story.rules(), story.verdict()), (vec![], Verdict::Holds));
    // In another name it may be at once.
    let grant = What::Grant { acquisition: 1, name: "y".to_owned(), weight: 1, token: None, fence: Some(9), until: None };
    assert_eq!(story.at(50, "D", grant).verdict(), Verdict::Holds);
}

#[test]
fn two_at_once_are_seen_and_fenced_only_by_fences_in_order() {
    let two = Story::new().grant(10, "A", 1, Some(30)).grant(29, "B", 2, None);
    assert_eq!((two.rules(), two.verdict()), (vec![Rule::Overlap], Verdict::Fenced));
    let unfenced = Story::new().weighs(10, "A", 1, None, Some(30)).weighs(29, "B", 1, None, None);
    assert_eq!((unfenced.rules(), unfenced.verdict()), (vec![Rule::Overlap], Verdict::Broken));
    let backwards = Story::new().grant(10, "A", 2, Some(30)).grant(29, "B", 1, None);
    assert_eq!((backwards.rules(), backwards.verdict()), (vec![Rule::Overlap, Rule::FenceOrder], Verdict::Broken));
}

#[test]
fn belief_ends_by_the_clock_by_a_loss_by_a_release_and_by_death() {
    let base = || Story::new().grant(10, "A", 1, Some(100));
    let ends = [What::Lost { acquisition: 1, why: "gone".into() }, What::Release { acquisition: 1 }, What::Died];
    for end in ends {
        let alone = base().at(50, "A", end.clone()).grant(50, "B", 2, None);
        assert_eq!(alone.rules(), [], "{end:?}");
        let before = base().grant(49, "B", 2, None).at(50, "A", end.clone());
        assert_eq!(before.rules(), [Rule::Overlap], "{end:?}");
    }
    let moved = |until| {
        let mut story = base().at(50, "A", What::Valid { acquisition: 1, until }).grant(120, "B", 2, None);
        // The order of the list is of no consequence.
        story.0.events.reverse();
        story.rules()
    };
    assert_eq!(moved(Some(121)), [Rule::Overlap]);
    assert_eq!(moved(Some(120)), []);
    assert_eq!(moved(None), [Rule::Overlap]);
    // Between the end that it knew and a later renewal it did not regard itself as the holder.
    let gap = base().at(150, "A", What::Valid { acquisition: 1, until: Some(200) }).grant(110, "B", 2, Some(140));
    assert_eq!(gap.rules(), []);
}

#[test]
fn a_tenure_that_has_ended_is_not_believed_again() {
    let lost = What::Lost { acquisition: 1, why: "gone".into() };
    let again = What::Valid { acquisition: 1, until: Some(400) };
    let story = Story::new().grant(10, "A", 1, Some(100)).at(50, "A", lost).grant(60, "B", 2, Some(90));
    assert_eq!(story.rules(), []);
    assert_eq!(story.at(70, "A", again).rules(), [Rule::Overlap, Rule::Revived]);
}

#[test]
fn a_process_that_was_started_again_is_another_claim() {
    let story = Story::new().grant(10, "A", 1, Some(1_000)).grant(30, "B", 2, Some(900)).at(950, "A", What::Died);
    assert_eq!(story.weighs(1_100, "A", 1, Some(3), None).rules()[0], Rule::Overlap, "of B and the first A");
}

#[test]
fn a_semaphore_has_room_for_as_many_as_it_has() {
    let mut story = Story::new().weighs(10, "A", 1, None, None).weighs(20, "B", 2, None, None);
    story.0.capacity = 3;
    assert_eq!(story.rules(), []);
    let over = story.weighs(30, "C", 1, Some(9), None);
    assert_eq!((over.rules(), over.verdict()), (vec![Rule::Overlap], Verdict::Broken), "no fence mends that");
    let mut many = Story::new().weighs(10, "A", 1, None, None).weighs(20, "B", u32::MAX, None, None);
    many.0.capacity = u32::MAX;
    assert_eq!(many.rules(), [Rule::Overlap]);
}

#[test]
fn fences_follow_the_order_of_those_who_could_know() {
    // B asked before A was granted: either order is right. Nobody may get the same.
    let asked_before = |fence| {
        let ask = What::Ask { acquisition: 1, name: "x".to_owned() };
        let grant = What::Grant { acquisition: 1, name: "x".to_owned(), weight: 1, token: None, fence: Some(fence), until: None };
        Story::new().at(5, "B", ask).grant(10, "A", 5, Some(20)).at(30, "B", grant).rules()
    };
    assert_eq!(asked_before(4), []);
    assert_eq!(asked_before(5), [Rule::FenceOrder]);
    assert_eq!(Story::new().grant(10, "A", 5, Some(20)).grant(30, "B", 4, None).rules(), [Rule::FenceOrder]);
    let unfenced = Story::new().grant(10, "A", 5, Some(20)).weighs(30, "B", 1, None, None);
    assert_eq!(unfenced.rules(), [Rule::FenceOrder], "where there was a fence there is one");
    // A share orders nothing.
    let mut shares = Story::new().weighs(10, "A", 1, Some(5), None).weighs(30, "B", 1, Some(4), None);
    shares.0.capacity = 2;
    assert_eq!(shares.rules(), []);
}

#[test]
fn the_resource_takes_no_stale_write_and_refuses_no_holder() {
    let held = || Story::new().grant(10, "A", 1, Some(20)).grant(30, "B", 2, None);
    assert_eq!(held().write(31, "B", 2, 0, true).write(32, "A", 1, 0, false).verdict(), Verdict::Fenced);
    assert_eq!(held().write(31, "B", 2, 0, true).write(32, "A", 1, 1, true).rules(), [Rule::StaleWrite]);
    assert_eq!(held().write(31, "B", 2, 0, false).rules(), [Rule::RefusedHolder]);
    let unfenced = What::Write { acquisition: 1, fence: None, read: 1, wrote: 2, accepted: true };
    assert_eq!(held().write(31, "B", 2, 0, true).at(32, "A", unfenced).rules(), [Rule::StaleWrite]);
    // A larger fence of another name is no excuse.
    let other = What::Grant { acquisition: 1, name: "y".into(), weight: 1, token: None, fence: Some(9), until: None };
    assert_eq!(held().at(30, "C", other).write(31, "B", 2, 0, false).rules(), [Rule::RefusedHolder]);
    // What it has read counts as seen.
    let read = What::Read { acquisition: 1, fence: Some(2), value: Some(0) };
    assert_eq!(held().at(31, "B", read).write(32, "A", 1, 0, true).rules(), [Rule::StaleWrite]);
}

#[test]
fn a_stale_write_is_seen_where_there_are_no_fences() {
    let write = |acquisition, read| What::Write { acquisition, fence: None, read, wrote: read + 1, accepted: true };
    let story = Story::new().weighs(10, "A", 1, None, Some(20)).at(12, "A", write(1, 0)).weighs(30, "B", 1, None, None);
    let stale = story.clone().at(32, "B", write(1, 1)).at(34, "A", write(1, 2));
    assert_eq!((stale.rules(), stale.verdict()), (vec![Rule::StaleWrite], Verdict::Broken));
    assert_eq!(story.at(32, "A", write(1, 1)).at(34, "B", write(1, 2)).rules(), vec![], "nobody had come");
}

#[test]
fn a_lost_update_is_seen() {
    let story = Story::new().write(10, "A", 1, 0, true).write(20, "B", 2, 1, true);
    assert_eq!(story.rules(), []);
    assert_eq!(story.clone().write(30, "C", 3, 1, true).rules(), [Rule::LostUpdate]);
    assert_eq!(story.write(30, "C", 3, 2, true).rules(), []);
    assert_eq!(Story::new().write(10, "A", 1, 7, true).rules(), [Rule::LostUpdate], "a value that never was");
}

#[test]
fn a_token_is_one_claims_own() {
    let other = What::Grant { acquisition: 1, name: "x".into(), weight: 1, token: Some("A".into()), fence: Some(2), until: None };
    assert_eq!(Story::new().grant(10, "A", 1, Some(20)).at(30, "B", other.clone()).rules(), [Rule::TokenReuse]);
    // Unless it passes from task to task, with the next fence.
    let passed = |who: &str, fence| {
        let grant = What::Grant { acquisition: 2, name: "x".into(), weight: 1, token: Some("A".into()), fence, until: None };
        Story::new().grant(10, "A", 1, Some(20)).at(30, who, grant).rules()
    };
    assert_eq!(passed("A", Some(2)), []);
    assert_eq!(passed("A", Some(3)), [Rule::TokenReuse]);
    assert_eq!(passed("B", Some(2)), [Rule::TokenReuse]);
}

#[test]
fn a_loss_is_told_in_time_and_only_if_there_was_one() {
    let [due, ..] = due("x", 10);
    let held = || Story::new().grant(10, "A", 1, None).at(20, "lab", due.clone());
    let lost = || What::Lost { acquisition: 1, why: "gone".into() };
    assert_eq!(held().at(30, "A", lost()).rules(), []);
    assert_eq!(held().at(31, "A", lost()).rules(), [Rule::LateLoss]);
    assert_eq!(held().rules(), [Rule::LateLoss], "never");
    assert_eq!(held().release(25, "A").rules(), [], "given up meanwhile");
    assert_eq!(Story::new().at(20, "lab", due.clone()).rules(), [Rule::LateLoss], "nobody held it");
    let mut kept = Story::new().grant(10, "A", 1, None).at(30, "A", lost());
    assert_eq!(kept.rules(), []);
    kept.0.keeps = true;
    assert_eq!(kept.rules(), [Rule::FalseLoss]);
}

#[test]
fn who_comes_later_is_served_later() {
    let queued = |at, who: &str, story: Story| story.at(at, who, What::Queued { acquisition: 1, name: "x".into() });
    let waits = || queued(5, "A", Story::new().at(4, "A", What::Ask { acquisition: 1, name: "x".into() }));
    let grant =
        |name: &str| What::Grant { acquisition: 1, name: name.into(), weight: 1, token: None, fence: None, until: Some(90) };
    let later = |story: Story| story.weighs(11, "B", 1, None, Some(30));
    assert_eq!(later(waits()).rules(), [Rule::Overtaken]);
    assert_eq!(later(waits()).at(40, "A", grant("x")).rules(), [Rule::Overtaken]);
    assert_eq!(later(waits().at(7, "A", grant("x")).release(10, "A")).rules(), []);
    let left = [
        What::Died,
        What::Release { acquisition: 1 },
        What::Failed { acquisition: 1, kind: Some("TimedOut".into()), text: "no".into() },
    ];
    for left in left {
        assert_eq!(later(waits().at(11, "A", left.clone())).rules(), [], "{left:?}");
        assert_eq!(later(waits()).at(12, "A", left.clone()).rules(), [Rule::Overtaken], "{left:?}");
    }
    // One that asked before, and one of another name, overtake nobody.
    assert_eq!(queued(10, "A", Story::new().weighs(10, "B", 1, None, Some(30))).rules(), []);
    assert_eq!(waits().at(6, "B", What::Ask { acquisition: 1, name: "y".into() }).at(11, "B", grant("y")).rules(), []);
    // Of two shares that are held together nobody knows which was served first.
    let shared = |end| {
        let mut story = waits().weighs(11, "B", 1, None, Some(end)).release(end, "B").at(20, "A", grant("x"));
        story.0.capacity = 2;
        story.rules()
    };
    assert_eq!((shared(21), shared(20)), (vec![], vec![Rule::Overtaken]));
}

#[test]
fn a_share_is_refused_for_no_other_share() {
    let mut both = Story::new().weighs(10, "A", 1, Some(5), None).weighs(12, "B", 1, Some(6), None);
    both.0.capacity = 2;
    let story = |accepted| both.clone().write(13, "B", 6, 0, true).write(14, "A", 5, 1, accepted).rules();
    assert_eq!(story(true), []);
    assert_eq!(story(false), [Rule::RefusedHolder]);
    let mut exclusive = Story::new().weighs(10, "A", 1, Some(5), Some(11)).weighs(12, "B", 2, Some(6), None);
    exclusive.0.capacity = 2;
    assert_eq!(exclusive.write(13, "B", 6, 0, true).write(14, "A", 5, 1, true).rules(), [Rule::StaleWrite]);
}

#[test]
fn somebody_gets_the_name_in_time() {
    let [_, due, _] = due("x", 10);
    let freed = || Story::new().at(20, "lab", due.clone());
    assert_eq!(freed().rules(), [Rule::NotGranted]);
    assert_eq!(freed().grant(30, "A", 1, None).rules(), []);
    assert_eq!(freed().grant(31, "A", 1, None).rules(), [Rule::NotGranted]);
    assert_eq!(freed().grant(25, "A", 1, Some(25)).rules(), [Rule::NotGranted], "it came after the end of its validity");
    assert_eq!(Story::new().grant(19, "A", 1, Some(20)).at(20, "lab", due).rules(), [Rule::NotGranted], "before does not count");
}

#[test]
fn a_name_is_not_taken_for_nobody() {
    let [.., due] = due("x", 10);
    let seen = |holder: Option<&str>, forever| What::Seen { name: "x".into(), holder: holder.map(str::to_owned), forever };
    let freed = || Story::new().at(20, "lab", due.clone());
    assert_eq!(freed().at(30, "lab", seen(None, false)).rules(), []);
    assert_eq!(freed().at(31, "lab", seen(None, false)).rules(), [Rule::Leak]);
    assert_eq!(freed().at(30, "lab", seen(Some("?"), false)).rules(), [Rule::Leak]);
    assert_eq!(freed().grant(25, "B", 1, None).rules(), [], "granted is free");
    assert_eq!(Story::new().at(5, "lab", seen(Some("?"), true)).rules(), [Rule::Leak]);
}

#[test]
fn every_error_has_a_class() {
    let failed = |kind: Option<&str>| What::Failed { acquisition: 1, kind: kind.map(str::to_owned), text: "no".into() };
    assert_eq!(Story::new().at(5, "A", failed(Some("TimedOut"))).rules(), []);
    assert_eq!(Story::new().at(5, "A", failed(None)).rules(), [Rule::Untyped]);
}

#[test]
fn a_history_is_the_same_from_the_disk_and_damage_is_told_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let story = Story::new().grant(10, "A", 1, Some(30)).grant(29, "B", 2, None).write(31, "B", 2, 0, true);
    story.0.save(&path).unwrap();
    let back = History::load(&path).unwrap();
    assert_eq!(back, story.0);
    assert_eq!(check(&back), check(&story.0));
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("nonsense\n");
    std::fs::write(&path, text).unwrap();
    let error = History::load(&path).unwrap_err().to_string();
    assert!(error.contains("history.jsonl, line 7"), "{error}");
}
