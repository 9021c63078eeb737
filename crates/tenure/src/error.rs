//! Errors: why a call failed, and whether it may have been applied all the same.

mod other_kind;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::Holder;

/// Class of an error, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller asked for something impossible: a bad name, a ttl too short for its timeouts, an unknown parameter.
    Invalid,
    /// The store cannot do this at all.
    Unsupported,
    /// Another client held the name until the timeout. [`Error::holder`] has it, if known.
    TimedOut,
    /// The lease ended before the work did.
    Lost,
    /// The store did not answer: no connection, or no reply in time.
    Unreachable,
    /// The store answered that it cannot serve now: loading, read-only, out of memory.
    Unavailable,
    /// This call got no turn, and as far as is known the store is well. Others changed the name again and again, or
    /// keep its row or the embedded file locked. Or there was no connection to spare: in the application's pool, or
    /// at a database.
    Overloaded,
    /// The store refused and will refuse again: password, permission.
    Refused,
    /// The name has something of another kind: another kind of lock, or a key that is no lock.
    Mismatch,
    /// The embedded file cannot be used: corrupt, full, read-only, not a file. Or the table of a
    /// database: missing, or of another version.
    Damaged,
}

/// An error with its reason, its fix if there is one, and whether the call may have been applied.
///
/// The text is one line: what failed, why, and what to do. It never contains secrets. Clones are
/// cheap, and keep the [source](StdError::source).
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    what: String,
    hint: Option<String>,
    maybe_applied: bool,
    holder: Option<Holder>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Makes an error of `kind`, of a call that was certainly not applied.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        let what = what.into();
        Self(Arc::new(Inner { kind, what, hint: None, maybe_applied: false, holder: None, source: None }))
    }

    /// Makes an [`ErrorKind::Invalid`].
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, what)
    }

    /// Makes an [`ErrorKind::Unreachable`].
    pub fn unreachable(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unreachable, what)
    }

    /// Makes an [`ErrorKind::Unavailable`].
    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, what)
    }

    /// Makes an [`ErrorKind::Overloaded`].
    pub fn overloaded(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Overloaded, what)
    }

    /// Makes an [`ErrorKind::Refused`].
    pub fn refused(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, what)
    }

    /// Makes the [`ErrorKind::Lost`] of a lease that another client may have now.
    pub(crate) fn lost() -> Self {
        Self::new(ErrorKind::Lost, "the lock is not held any more")
    }

    /// Makes the [`ErrorKind::Invalid`] of a call in the child of a fork.
    pub(crate) fn after_fork() -> Self {
        let what = "the store was opened before a fork, and the child has neither its threads nor its connections";
        Self::invalid(what).with_hint("open a store in the child, or start another program there with exec")
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn with_hint(mut self, fix: impl Into<String>) -> Self {
        self.inner().hint = Some(fix.into());
        self
    }

    /// Marks that the call may have been applied, or may still be.
    #[must_use]
    pub fn maybe_applied(mut self) -> Self {
        self.inner().maybe_applied = true;
        self
    }

    /// Keeps the error below this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner().source = Some(source.into().into());
        self
    }

    /// The same with another class.
    #[must_use]
    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.inner().kind = kind;
        self
    }

    /// Adds the holder of the name.
    #[must_use]
    pub(crate) fn held_by(mut self, holder: Option<Holder>) -> Self {
        self.inner().holder = holder;
        self
    }

    /// Class of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the call may have been applied in spite of the error. `false` is certain.
    pub fn may_have_been_applied(&self) -> bool {
        self.0.maybe_applied
    }

    /// Whether the same call may succeed later, without a change by the caller.
    pub fn is_transient(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unreachable | ErrorKind::Unavailable | ErrorKind::Overloaded)
    }

    /// Holder of the name, for [`ErrorKind::TimedOut`] if the store tells.
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// Puts the action of the caller in front of the text.
    #[must_use]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.inner().what = format!("{doing}: {}", self.0.what);
        self
    }

    /// Text without the hint.
    pub(crate) fn reason(&self) -> String {
        let Inner { what, source, .. } = &*self.0;
        source.as_ref().map_or_else(|| what.clone(), |source| format!("{what}: {source}"))
    }

    /// Fix that the text ends with.
    pub(crate) fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Returns the part that can be changed. An error that has clones is copied first.
    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason())?;
        if let Some(fix) = &self.0.hint {
            write!(f, "; {fix}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let applied = if self.0.maybe_applied { ", maybe applied" } else { "" };
        write!(f, "{:?}({self}{applied})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
