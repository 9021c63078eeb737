//! Where a request has its key.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Request};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::BoxError;
use crate::frames::{Frames, RequestBody};
use crate::problem::Problem;

/// Largest body in which a key is looked for, unless [`Key::body_limit`] says another.
const BODY_LIMIT: usize = 64 * 1024;

/// A key, none, or why it is a bad one.
type FoundKey = Result<Option<String>, &'static str>;

/// Finds the key of a request. Requests with equal keys are served one at a time.
///
/// Keys are compared byte by byte. An empty one counts as none.
#[derive(Clone)]
pub struct Key(Source);

type InParts = dyn Fn(&Parts) -> FoundKey + Send + Sync;
type InBody = dyn Fn(&Parts, &Bytes) -> FoundKey + Send + Sync;

#[derive(Clone)]
enum Source {
    Parts(Arc<InParts>),
    Body { find: Arc<InBody>, limit: usize, fault: Option<String> },
}

impl Key {
    /// The value of a header, such as `idempotency-key` or the user that a proxy has checked.
    ///
    /// A header that occurs twice is refused: the handler might read the other one.
    pub fn header(name: HeaderName) -> Self {
        Self(Source::Parts(Arc::new(move |parts| {
            let mut values = parts.headers.get_all(&name).iter();
            let first = values.next();
            if values.next().is_some() {
                return Err("The header of the key occurs more than once.");
            }
            let text = first.map(|value| std::str::from_utf8(value.as_bytes()));
            text.transpose().map(|text| text.map(str::to_owned)).map_err(|_| "The key is not UTF-8.")
        })))
    }

    /// The whole path, without the query. Percent-encoding is undone, since one path has many
    /// spellings.
    ///
    /// In axum, a layer inside of `nest` sees the rest of the path only.
    pub fn path() -> Self {
        Self(Source::Parts(Arc::new(|parts| decoded(parts.uri.path()).map(Some))))
    }

    /// A segment of the path, counted from 0: of `/orders/42/pay`, segment 1 is `42`.
    /// Percent-encoding is undone.
    ///
    /// In axum, a layer inside of `nest` sees the rest of the path only, and counts from there: inside
    /// of `nest("/orders", ...)`, segment 1 of `/orders/42/pay` is `pay`, and all orders share a key.
    pub fn path_segment(index: usize) -> Self {
        Self(Source::Parts(Arc::new(move |parts| parts.uri.path().split('/').skip(1).nth(index).map(decoded).transpose())))
    }

    /// A field of a JSON body, as a [JSON pointer]: `/user/id`. It has to be a text or a whole
    /// number below 2^64.
    ///
    /// The body is read up to its [limit](Key::body_limit), and passed on whole. A body that is not
    /// JSON has no key. Of fields with the same name the last one counts.
    ///
    /// [JSON pointer]: https://www.rfc-editor.org/rfc/rfc6901
    pub fn json(pointer: impl Into<String>) -> Self {
        let pointer = pointer.into();
        let fault = fault_of(&pointer).map(|fault| format!("the JSON pointer {pointer:?} {fault}"));
        Self::of_body(fault, move |_, body| {
            let Ok(whole) = serde_json::from_slice::<Value>(body) else { return Ok(None) };
            match whole.pointer(&pointer) {
                None | Some(Value::Null) => Ok(None),
                Some(Value::String(text)) => Ok(Some(text.clone())),
                Some(Value::Number(number)) if !number.is_f64() => Ok(Some(number.to_string())),
                Some(_) => Err("The key is not a text or a whole number below 2^64."),
            }
        })
    }

    /// A key that `find` makes of the head of the request: of several headers, of an extension that
    /// names the user, or only for some methods. `None` means that the request has no key.
    ///
    /// If the key has parts that the client chooses, separate them by something that no part
    /// contains.
    pub fn from_parts(find: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Source::Parts(Arc::new(move |parts| Ok(find(parts)))))
    }

    /// A key that `find` makes of the head and the body. The body is read up to its
    /// [limit](Key::body_limit), and passed on whole.
    pub fn from_body(find: impl Fn(&Parts, &Bytes) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::of_body(None, move |parts, body| Ok(find(parts, body)))
    }

    fn of_body(fault: Option<String>, find: impl Fn(&Parts, &Bytes) -> FoundKey + Send + Sync + 'static) -> Self {
        Self(Source::Body { find: Arc::new(find), limit: BODY_LIMIT, fault })
    }

    /// Sets the largest body in which the key is looked for, in bytes: 64 KiB by default. Larger
    /// ones are answered with 413. No effect on keys outside of the body.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        if let Source::Body { limit, .. } = &mut self.0 {
            *limit = bytes;
        }
        self
    }

    /// Says why no request could have a key.
    pub(crate) fn check(&self) -> Result<(), tenure::Error> {
        match &self.0 {
            Source::Body { fault: Some(fault), .. } => {
                Err(tenure::Error::invalid(fault.clone()).with_hint("write it as /user/id"))
            }
            _ => Ok(()),
        }
    }

    /// Finds the key. Returns the request as it came, with its body in memory if it was read.
    pub(crate) async fn find<B>(&self, request: Request<B>) -> Result<(Option<String>, Request<RequestBody<B>>), Problem>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let (found, body) = match &self.0 {
            Source::Parts(find) => (find(&parts), RequestBody::unread(body)),
            Source::Body { find, limit, .. } => {
                let frames = read(body, *limit).await?;
                let found = find(&parts, frames.data());
                (found, RequestBody::read(frames))
            }
        };
        let key = found.map_err(Problem::BadKey)?.filter(|key| !key.is_empty());
        Ok((key, Request::from_parts(parts, body)))
    }
}

async fn read<B>(body: B, limit: usize) -> Result<Frames, Problem>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(Problem::BodyTooLarge);
    }
    match Limited::new(body, limit).collect().await {
        Ok(collected) => {
            let trailers = collected.trailers().cloned();
            Ok(Frames::new(collected.to_bytes(), trailers))
        }
        Err(error) if error.is::<LengthLimitError>() => Err(Problem::BodyTooLarge),
        Err(_) => Err(Problem::BodyUnreadable),
    }
}

/// Says why a text is no JSON pointer to a field.
fn fault_of(pointer: &str) -> Option<&'static str> {
    let mut escapes = pointer.split('~').skip(1);
    if !pointer.starts_with('/') {
        Some("does not begin with a slash")
    } else if escapes.any(|rest| !rest.starts_with(['0', '1'])) {
        Some("has a tilde that is neither ~0 (a tilde) nor ~1 (a slash)")
    } else {
        None
    }
}

fn decoded(path: &str) -> Result<String, &'static str> {
    percent_decode_str(path).decode_utf8().map(Cow::into_owned).map_err(|_| "The key is not UTF-8.")
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Parts(_) => f.write_str("Key(head)"),
            Source::Body { limit, .. } => write!(f, "Key(body up to {limit} bytes)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(key: &Key, request: http::request::Builder) -> FoundKey {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        match &key.0 {
            Source::Parts(find) => find(&parts),
            Source::Body { .. } => panic!("not a key of the head"),
        }
    }

    fn json(pointer: &str, body: &'static str) -> FoundKey {
        let (parts, ()) = Request::new(()).into_parts();
        match Key::json(pointer).0 {
            Source::Body { find, .. } => find(&parts, &Bytes::from_static(body.as_bytes())),
            Source::Parts(_) => panic!("not a key of the body"),
        }
    }

    #[test]
    fn spellings_of_one_path_are_one_key() {
        for path in ["/orders/42/pay", "/orders/%34%32/pay", "/%6frders/42/pay?again=1"] {
            assert_eq!(head(&Key::path(), Request::get(path)), Ok(Some("/orders/42/pay".into())), "{path}");
            assert_eq!(head(&Key::path_segment(1), Request::get(path)), Ok(Some("42".into())), "{path}");
        }
        assert_eq!(head(&Key::path_segment(3), Request::get("/orders/42/pay")), Ok(None));
        assert!(head(&Key::path(), Request::get("/%ff")).is_err());
    }

    #[test]
    fn a_header_that_occurs_twice_is_no_key() {
        let key = Key::header(HeaderName::from_static("x-user"));
        assert_eq!(head(&key, Request::get("/")), Ok(None));
        assert_eq!(head(&key, Request::get("/").header("x-user", "7")), Ok(Some("7".into())));
        assert!(head(&key, Request::get("/").header("x-user", "7").header("x-user", "7")).is_err());
        assert!(head(&key, Request::get("/").header("x-user", &b"\xff"[..])).is_err());
    }

    #[test]
    fn fields_of_json_are_texts_or_whole_numbers() {
        let body = r#"{"user": {"id": 42, "name": "a", "rate": 1.5, "none": null}}"#;
        for (pointer, found) in [("/user/id", "42"), ("/user/name", "a")] {
            assert_eq!(json(pointer, body), Ok(Some(found.into())));
        }
        for pointer in ["/user/none", "/user/missing", "/other"] {
            assert_eq!(json(pointer, body), Ok(None), "{pointer}");
        }
        assert!(json("/user", body).is_err() && json("/user/rate", body).is_err());
        assert_eq!(json("/user", "not JSON"), Ok(None));
        assert!(Key::json("user").check().is_err() && Key::json("/user").check().is_ok());
        assert_eq!(json("/a~1b/~0", r#"{"a/b": {"~": 7}}"#), Ok(Some("7".into())));
        assert!(Key::json("/a~1b/~0").check().is_ok());
    }
}
