//! What is common to all counterexamples in words.

use super::promise::{Promise, Subject};

/// What happened, a line for each step, in order.
pub type Story = Vec<String>;

/// Puts the steps of a protocol into words.
pub(crate) trait Narrator<P: Subject> {
    /// Ticks since the beginning.
    fn now(&mut self) -> &mut u32;

    /// What is so before anything has happened; nothing where that need not be said.
    fn begin(&self, state: &P::State) -> Story;

    /// A line for each thing that a step does.
    fn step(&mut self, before: &P::State, action: P::Action, after: &P::State) -> Story;

    /// How the promise is broken in the end.
    fn end(&self, state: &P::State, promise: Promise) -> String;
}

/// Tells `actions`, which end in a broken `promise`.
pub(crate) fn told<P: Subject>(protocol: &P, mut narrator: impl Narrator<P>, actions: &[P::Action], promise: Promise) -> Story {
    let mut state = protocol.init_states().remove(0);
    let at = |now: &u32, lines: Story| lines.into_iter().map(move |line| format!("t={now}  {line}")).collect::<Story>();
    let first = narrator.begin(&state);
    let mut story = at(narrator.now(), first);
    for action in actions {
        let Some(next) = protocol.next_state(&state, *action) else { continue };
        if *action == P::TICK {
            *narrator.now() += 1;
        }
        let lines = narrator.step(&state, *action, &next);
        story.extend(at(narrator.now(), lines));
        state = next;
    }
    let last = narrator.end(&state, promise);
    story.extend(at(narrator.now(), vec![last]));
    story
}

/// What is under way, and since when.
pub(crate) struct UnderWay<R>(Vec<(R, u32)>);

impl<R: Copy + PartialEq> UnderWay<R> {
    pub(crate) const fn nothing() -> Self {
        Self(Vec::new())
    }

    /// ` of t=2`, where it was sent before `now`.
    pub(crate) fn since(&self, request: R, now: u32) -> String {
        let since = self.0.iter().find(|(sent, _)| *sent == request).map_or(now, |(_, since)| *since);
        if since < now { format!(" of t={since}") } else { String::new() }
    }

    /// It has arrived.
    pub(crate) fn arrives(&mut self, request: R) {
        if let Some(index) = self.0.iter().position(|(sent, _)| *sent == request) {
            self.0.remove(index);
        }
    }

    /// This is what is under way now.
    pub(crate) fn is(&mut self, mut left: Vec<R>, now: u32) {
        self.0.retain(|(request, _)| left.iter().position(|other| other == request).map(|index| left.remove(index)).is_some());
        self.0.extend(left.into_iter().map(|request| (request, now)));
    }
}

/// A, B, C.
pub(crate) fn client_name(client: usize) -> String {
    ["A", "B", "C"][client].to_owned()
}
