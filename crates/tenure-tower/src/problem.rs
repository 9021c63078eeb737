//! Refusals: their reasons, and the form in which a client expects them.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::policy::RefuseWith;
use crate::stats::Event;

/// Pause for a client if nothing better is known.
const SOON: Duration = Duration::from_secs(1);
const GRPC: &[u8] = b"application/grpc";

/// Form in which a client expects an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Grpc,
}

impl Form {
    /// Recognises a gRPC request, but not one of gRPC-Web, whose clients expect another form.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        match kind.strip_prefix(GRPC) {
            Some([] | [b'+' | b';', ..]) => Self::Grpc,
            _ => Self::Json,
        }
    }
}

/// A refusal. It has nothing from the store in it: who holds is not for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    InProgress(RefuseWith, Option<Duration>),
    CoolDown(RefuseWith, Option<Duration>),
    NoKey,
    BadKey(&'static str),
    BodyTooLarge,
    BodyUnreadable,
    StoreUnavailable,
    StoreRefused,
    Overloaded,
    LockLost,
    FirstFailed,
    FirstTooLarge,
}

impl Problem {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::InProgress(..) => "in-progress",
            Self::CoolDown(..) => "cool-down",
            Self::NoKey => "no-key",
            Self::BadKey(_) => "bad-key",
            Self::BodyTooLarge => "body-too-large",
            Self::BodyUnreadable => "body-unreadable",
            Self::StoreUnavailable => "store-unavailable",
            Self::StoreRefused => "store-refused",
            Self::Overloaded => "overloaded",
            Self::LockLost => "lock-lost",
            Self::FirstFailed => "first-failed",
            Self::FirstTooLarge => "first-too-large",
        }
    }

    pub(crate) fn detail(self) -> &'static str {
        match self {
            Self::InProgress(..) => "A request with the same key is in progress.",
            Self::CoolDown(..) => "A request with the same key was served a short time ago.",
            Self::NoKey => "The request has no key.",
            Self::BadKey(why) => why,
            Self::BodyTooLarge => "The body is too large to look for the key.",
            Self::BodyUnreadable => "The body broke off before the key was found.",
            Self::StoreUnavailable => "The lock cannot be taken now.",
            Self::StoreRefused => "The lock cannot be taken, because the service is not set up for it.",
            Self::Overloaded => "Too many requests wait for their locks.",
            Self::LockLost => "The lock was lost, and the request was cancelled. It may have had an effect.",
            Self::FirstFailed => "The first request with the same key was not answered.",
            Self::FirstTooLarge => "The answer to the first request with the same key is too large to copy.",
        }
    }

    /// As what a request counts that joined one with this answer.
    pub(crate) fn of_joined(self) -> Event {
        match self {
            Self::InProgress(..) | Self::CoolDown(..) => Event::Refused,
            Self::NoKey | Self::BadKey(_) | Self::BodyTooLarge | Self::BodyUnreadable => Event::Invalid,
            Self::StoreUnavailable | Self::StoreRefused => Event::FailedClosed,
            Self::Overloaded => Event::Overloaded,
            Self::LockLost | Self::FirstFailed | Self::FirstTooLarge => Event::Unanswered,
        }
    }

    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::InProgress(with, _) | Self::CoolDown(with, _) => with.status(),
            Self::NoKey | Self::BadKey(_) | Self::BodyUnreadable => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The gRPC status whose advice to clients is the same.
    pub(crate) fn grpc_status(self) -> &'static str {
        const INVALID_ARGUMENT: &str = "3";
        const RESOURCE_EXHAUSTED: &str = "8";
        const ABORTED: &str = "10";
        const UNAVAILABLE: &str = "14";
        match self {
            Self::InProgress(RefuseWith::TooManyRequests, _)
            | Self::CoolDown(RefuseWith::TooManyRequests, _)
            | Self::BodyTooLarge => RESOURCE_EXHAUSTED,
            Self::NoKey | Self::BadKey(_) | Self::BodyUnreadable => INVALID_ARGUMENT,
            Self::StoreUnavailable | Self::StoreRefused | Self::Overloaded => UNAVAILABLE,
            // Clients may repeat by themselves what is unavailable. This may have had an effect.
            _ => ABORTED,
        }
    }

    /// Time after which a repeat makes sense; `None` if the request has to be changed first.
    pub(crate) fn retry_after(self) -> Option<Duration> {
        match self {
            Self::InProgress(_, after) | Self::CoolDown(_, after) => Some(after.unwrap_or(SOON)),
            Self::NoKey | Self::BadKey(_) | Self::BodyTooLarge | Self::BodyUnreadable => None,
            _ => Some(SOON),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_from_grpc_web() {
        for (kind, form) in [
            ("application/grpc", Form::Grpc),
            ("application/grpc+proto", Form::Grpc),
            ("application/grpc;v=1", Form::Grpc),
            ("application/grpc-web", Form::Json),
            ("application/json", Form::Json),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(Form::of(&headers), form, "{kind}");
        }
        assert_eq!(Form::of(&HeaderMap::new()), Form::Json);
    }
}
