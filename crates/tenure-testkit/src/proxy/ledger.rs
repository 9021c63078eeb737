//! Which reply on a connection belongs to which command.

use std::collections::VecDeque;

use super::state::LossMode;
use crate::resp;

/// Kind of a frame from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reply,
    /// Says that a subscription was made or ended.
    Confirmation,
    /// Comes without being asked for.
    Push,
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    Reply,
    Lost(LossMode),
    LostConfirmation(LossMode),
}

/// The replies that are still to come, in order.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    expected: VecDeque<Expected>,
    subscriber: bool,
}

impl Ledger {
    /// Notes a command that is sent on.
    pub(super) fn sent(&mut self, request: &[u8], lose_reply: Option<LossMode>) {
        let subscribes = is_confirmation(resp::words(request).first().copied().unwrap_or_default());
        self.subscriber |= subscribes;
        match (subscribes, lose_reply) {
            (false, None) => self.expected.push_back(Expected::Reply),
            (false, Some(loss)) => self.expected.push_back(Expected::Lost(loss)),
            (true, Some(loss)) => self.expected.push_back(Expected::LostConfirmation(loss)),
            // Confirmed once per channel, outside the order of replies.
            (true, None) => {}
        }
    }

    /// Whether a frame from the server answers a command, a confirmation for each channel.
    pub(super) fn is_answer(&self, frame: &[u8]) -> bool {
        self.kind(frame) != Kind::Push
    }

    /// Notes a frame from the server; says when it is one to lose.
    pub(super) fn received(&mut self, frame: &[u8]) -> Option<LossMode> {
        let next = *self.expected.front()?;
        match self.kind(frame) {
            Kind::Push => return None,
            Kind::Confirmation => {}
            Kind::Reply => drop(self.expected.pop_front()),
        }
        match next {
            Expected::LostConfirmation(loss) => Some(loss),
            Expected::Lost(loss) if self.kind(frame) == Kind::Reply => Some(loss),
            Expected::Lost(_) | Expected::Reply => None,
        }
    }

    fn kind(&self, frame: &[u8]) -> Kind {
        let push = frame.starts_with(b">");
        // In RESP2 a message looks like any array, so only a subscriber's arrays are looked into.
        let suspect = push || (self.subscriber && frame.starts_with(b"*"));
        if !suspect {
            return Kind::Reply;
        }
        let words = resp::words(frame);
        let first = words.first().copied().unwrap_or_default();
        let message = [&b"message"[..], b"pmessage", b"smessage"].contains(&first);
        match (is_confirmation(first), push || message) {
            (true, _) => Kind::Confirmation,
            (false, true) => Kind::Push,
            (false, false) => Kind::Reply,
        }
    }
}

/// Whether this is the name of a command that is answered outside the order of replies, or the head of such an answer.
fn is_confirmation(word: &[u8]) -> bool {
    let word = word.to_ascii_lowercase();
    let word = word.strip_prefix(b"p").or_else(|| word.strip_prefix(b"s")).unwrap_or(&word);
    [&b"subscribe"[..], b"ubscribe", b"unsubscribe"].contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Option<LossMode> = Some(LossMode::Silence);

    /// Another reply would be lost than the one that the test chose.
    #[test]
    fn pushes_take_no_place_and_a_value_that_reads_like_one_does() {
        let mut ledger = Ledger::default();
        for (words, lost) in [(&["SUBSCRIBE", "a", "b"][..], None), (&["PING"], LOST)] {
            ledger.sent(&resp::request(words), lost);
        }
        for frame in [&["subscribe", "a"], &["message", "a"], &["ssubscribe", "b"], &["punsubscribe", "b"]] {
            assert!(ledger.received(&resp::request(frame)).is_none(), "{frame:?}");
        }
        assert_eq!(ledger.received(b">2\r\n$10\r\ninvalidate\r\n$1\r\na\r\n"), None);
        assert_eq!(ledger.received(&resp::request(&["pong", ""])), LOST);
        let mut ledger = Ledger::default();
        ledger.sent(&resp::request(&["LRANGE", "l", "0", "-1"]), LOST);
        assert_eq!(ledger.received(&resp::request(&["message", "a", "b"])), LOST);
        ledger.sent(&resp::request(&["SUBSCRIBE", "a"]), LOST);
        assert_eq!(ledger.received(&resp::request(&["subscribe", "a"])), LOST);
    }
}
