//! Answers that no handler gives: a refusal, as problem+json or as the status of a gRPC call, and a copy of another's.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response};
use serde_json::json;

use crate::body::LockBody;
use crate::frames::Frames;
use crate::join::Copied;
use crate::problem::{Form, Problem};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

impl Problem {
    pub(crate) fn response<R>(self, form: Form) -> Response<LockBody<R>> {
        match form {
            Form::Json => self.json(),
            Form::Grpc => self.grpc(),
        }
    }

    fn json<R>(self) -> Response<LockBody<R>> {
        let status = self.status();
        let (title, reason, detail) = (status.canonical_reason().unwrap_or_default(), self.reason(), self.detail());
        let body = json!({"type": "about:blank", "title": title, "status": status.as_u16(), "reason": reason, "detail": detail});
        let mut response = Response::new(LockBody::of(Frames::whole(Bytes::from(body.to_string())), None));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = self.retry_after() {
            response.headers_mut().insert(RETRY_AFTER, whole_seconds(after).into());
        }
        response
    }

    /// An answer of headers alone, as gRPC has it for calls that fail at once.
    fn grpc<R>(self) -> Response<LockBody<R>> {
        let mut response = Response::new(LockBody::of(Frames::default(), None));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from_static(self.grpc_status()));
        headers.insert(GRPC_MESSAGE, HeaderValue::from_static(self.reason()));
        if let Some(after) = self.retry_after() {
            headers.insert(GRPC_PUSHBACK, u64::try_from(after.as_millis()).unwrap_or(u64::MAX).into());
        }
        response
    }
}

impl Copied {
    pub(crate) fn response<R>(&self) -> Response<LockBody<R>> {
        let mut response = Response::new(LockBody::of(self.frames.clone(), self.unsent));
        *response.status_mut() = self.status;
        *response.version_mut() = self.version;
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// Rounds up: a client that comes back too early is refused again.
fn whole_seconds(time: Duration) -> u64 {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_never_asked_back_too_early() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (4_999, 5)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds, "{millis} ms");
        }
    }
}
