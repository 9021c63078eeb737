//! What is common to all counterexamples in words.

/// What happened, a line for each step, in order.
pub type Story = Vec<String>;

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

/// `A`, and `A2` for its second claim.
pub(crate) fn claim_name(client: usize, nth: u8) -> String {
    let client = client_name(client);
    if nth == 0 { client } else { format!("{client}{}", nth + 1) }
}
