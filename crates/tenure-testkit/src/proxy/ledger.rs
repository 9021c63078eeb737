//! Which reply on a connection belongs to which command.

use std::collections::VecDeque;

use crate::resp;

/// What a frame from the server is.
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
    Swallowed,
    SwallowedConfirmation,
}

/// The replies that are still to come, in order.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    expected: VecDeque<Expected>,
    subscriber: bool,
}

impl Ledger {
    /// Notes a command that is sent on.
    pub(super) fn sent(&mut self, request: &[u8], swallow: bool) {
        let subscribes = is_confirmation(resp::words(request).first().copied().unwrap_or_default());
        self.subscriber |= subscribes;
        match (subscribes, swallow) {
            (false, false) => self.expected.push_back(Expected::Reply),
            (false, true) => self.expected.push_back(Expected::Swallowed),
            (true, true) => self.expected.push_back(Expected::SwallowedConfirmation),
            // Confirmed once per channel, outside the order of replies.
            (true, false) => {}
        }
    }

    /// Notes a frame from the server; true when it is the one to swallow.
    pub(super) fn received(&mut self, frame: &[u8]) -> bool {
        let swallow = match (self.kind(frame), self.expected.front()) {
            (Kind::Push, _) | (_, None) => return false,
            (Kind::Confirmation, Some(next)) => {
                return matches!(next, Expected::SwallowedConfirmation);
            }
            (Kind::Reply, Some(next)) => !matches!(next, Expected::Reply),
        };
        self.expected.pop_front();
        swallow
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

    fn ledger(commands: &[(&[&str], bool)]) -> Ledger {
        let mut ledger = Ledger::default();
        for (words, swallow) in commands {
            ledger.sent(&resp::request(words), *swallow);
        }
        ledger
    }

    #[test]
    fn only_the_chosen_reply_is_swallowed() {
        let mut ledger = ledger(&[(&["GET", "a"], false), (&["GET", "b"], true), (&["GET", "c"], false)]);
        assert_eq!([(); 4].map(|()| ledger.received(b"$-1\r\n")), [false, true, false, false]);
    }

    #[test]
    fn pushes_and_confirmations_take_no_place() {
        let mut ledger = ledger(&[(&["SUBSCRIBE", "a", "b"], false), (&["PING"], true)]);
        for frame in [&["subscribe", "a"], &["message", "a"], &["ssubscribe", "b"], &["punsubscribe", "b"]] {
            assert!(!ledger.received(&resp::request(frame)), "{frame:?}");
        }
        assert!(!ledger.received(b">2\r\n$10\r\ninvalidate\r\n$1\r\na\r\n"));
        assert!(ledger.received(&resp::request(&["pong", ""])));
    }

    #[test]
    fn a_value_that_reads_like_a_message_is_a_reply() {
        let mut ledger = ledger(&[(&["LRANGE", "l", "0", "-1"], true)]);
        assert!(ledger.received(&resp::request(&["message", "a", "b"])));
    }

    #[test]
    fn a_subscription_can_be_swallowed() {
        let mut ledger = ledger(&[(&["GET", "a"], false), (&["SUBSCRIBE", "a"], true)]);
        assert!(!ledger.received(b"$-1\r\n"));
        assert!(ledger.received(&resp::request(&["subscribe", "a"])));
    }
}
