//! Settings of an acquisition: the request to the store, and the way to wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::Attempt;
use super::guard::Core;
use super::queue::AcquireKey;
use crate::lease::Terms;
use crate::{Error, ErrorKind, Holder, Name, Owner, Share};

/// Event of a wait; see [`Acquire::on_wait`](crate::Acquire::on_wait).
#[derive(Debug)]
#[non_exhaustive]
pub enum Waiting<'a> {
    /// Another client holds the name. Reported first, and whenever the holder changes.
    Busy(Option<&'a Holder>),
    /// The store does not serve us. Reported when an outage begins, and when its reason is another one.
    Outage(&'a Error),
    /// It still does not, for a reason that was reported. Reported after each further try, with the times of now.
    OutageGoesOn(&'a Error),
    /// The store answers again.
    Recovered,
}

type Observer = Box<dyn Fn(Waiting<'_>) + Send + Sync>;

/// Settings of an acquisition, whatever its names.
pub(crate) struct Settings {
    pub(crate) core: Arc<Core>,
    pub(crate) share: Result<Share, Error>,
    pub(crate) terms: Terms,
    pub(crate) safety_margin: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) poll_interval: Option<Duration>,
    pub(crate) label: Arc<str>,
    pub(crate) token: Option<Owner>,
    pub(crate) observer: Option<Observer>,
}

impl Settings {
    pub(crate) fn new(core: Arc<Core>, share: Result<Share, Error>, terms: Terms, label: Arc<str>) -> Self {
        let (safety_margin, wait, poll_interval, token, observer) = (None, None, None, None, None);
        Self { core, share, terms, safety_margin, wait, poll_interval, label, token, observer }
    }

    /// Refuses settings and names that cannot work with the store.
    pub(crate) fn check<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> Result<(), Error> {
        self.core.session.check_process()?;
        let (store, features) = (&self.core.session.store, self.core.session.store.features());
        for name in names {
            let (length, most) = (name.as_str().len(), features.max_name);
            if length > most {
                let what = format!("the lock name has {length} bytes, more than the {most} this store can keep");
                return Err(Error::invalid(what).with_hint("use a shorter name, or a digest of it"));
            }
        }
        let share = self.share.clone()?;
        if share != Share::MUTEX && !features.shares {
            let what = format!("{store} keeps no shares, and {} needs them", share.kind());
            return Err(Error::new(ErrorKind::Unsupported, what).with_hint("use a mutex, or another store"));
        }
        crate::owner::check_label(&self.label)?;
        self.terms().check(&features)
    }

    pub(crate) fn key(&self) -> Result<AcquireKey, Error> {
        let share = self.share.clone()?;
        Ok(AcquireKey { share, terms: self.terms(), label: Arc::clone(&self.label), token: self.token.clone() })
    }

    pub(crate) fn terms(&self) -> Terms {
        let ttl = self.terms.ttl;
        Terms { safety_margin: self.safety_margin.unwrap_or(ttl / 10), ..self.terms }
    }

    /// Whether the user set a safety margin. The default may be smaller until a handed-over lease
    /// is renewed.
    pub(crate) fn asks_margin(&self) -> bool {
        self.safety_margin.is_some()
    }

    /// Makes an attempt with a new token, or with the supplied one.
    pub(crate) fn attempt(&self, name: &Name, key: &AcquireKey) -> Result<Attempt, Error> {
        Ok(Attempt::first(&self.core.session, name.clone(), self.owner()?, key))
    }

    pub(crate) fn owner(&self) -> Result<Owner, Error> {
        match &self.token {
            Some(token) => Ok(token.clone()),
            None => Owner::generate(&self.label),
        }
    }

    pub(crate) fn observe(&self, what: Waiting<'_>) {
        if let Some(observer) = &self.observer {
            observer(what);
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("terms", &self.terms).field("wait", &self.wait).finish_non_exhaustive()
    }
}
