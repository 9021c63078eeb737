//! Sends pipelines on the link in use, or on a new one if that has failed.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, RedisResult};
use tenure::Error;
use tokio::time::Instant;
use tracing::debug;

use super::Connection;
use crate::transport::address::is_redirect;
use crate::transport::commands::Commands;
use crate::transport::contact::Moment;
use crate::transport::exchange::{Exchange, Repeat};
use crate::transport::failure::{is_away, is_crowded, is_logged_out, is_no_master, is_out_of_memory, translate};
use crate::transport::form::Form;
use crate::transport::link::{DEAD_AFTER, Limits, Link};
use crate::transport::multiplex::ended;
use crate::transport::reply::Answers;
use crate::transport::run::Run;

impl Connection {
    /// Sends a pipeline of scripts, and waits for its answers until `end`.
    ///
    /// `pipeline` gets the link it is for and the form in which scripts are called.
    pub(crate) async fn call<C: Into<Commands>>(
        &self,
        end: Instant,
        repeat: Repeat,
        pipeline: impl Fn(&Link, Form) -> C + Sync,
    ) -> Result<Exchange, Error> {
        let (mut form, mut repeated) = (self.link().map_or(Form::Digest, |link| link.form()), false);
        loop {
            let exchange = self.exchange(end, repeat, |link| pipeline(link, form)).await;
            let exchange = exchange.map_err(|error| if repeated { error.maybe_applied() } else { error })?;
            let Exchange { link, mut answers, repeated: again } = exchange;
            repeated |= again;
            if form == Form::Loaded {
                // The call says whether it could be loaded.
                answers.drain(..answers.len().min(1));
            }
            let mut refusals = answers.iter().filter_map(|answer| answer.as_ref().err());
            let Some((error, other)) = refusals.find_map(|error| Some((error, form.instead(error)?))) else {
                return Ok(Exchange { link, answers, repeated });
            };
            if other == Form::Digest && !is_out_of_memory(error) {
                link.lost_functions();
            }
            form = other;
        }
    }

    /// As [`call`](Connection::call), for a pipeline that handles a forgotten script itself. In a
    /// cluster, commands that another node has to run are sent there.
    pub(crate) async fn exchange<C: Into<Commands>>(
        &self,
        end: Instant,
        repeat: Repeat,
        pipeline: impl Fn(&Link) -> C + Sync,
    ) -> Result<Exchange, Error> {
        let exchange = self.exchange_here(end, repeat, &pipeline).await?;
        let leads_on = || exchange.answers.iter().any(|answer| answer.as_ref().is_err_and(is_redirect));
        if let Some((nodes, here)) = &self.cluster
            && leads_on()
            && let Some(nodes) = nodes.upgrade()
        {
            let commands = pipeline(&exchange.link).into();
            return nodes.follow(here, exchange, &commands, repeat, end).await;
        }
        Ok(exchange)
    }

    /// As [`exchange`](Connection::exchange), with this node alone.
    pub(crate) async fn exchange_here<C: Into<Commands>>(
        &self,
        end: Instant,
        repeat: Repeat,
        pipeline: impl Fn(&Link) -> C + Sync,
    ) -> Result<Exchange, Error> {
        let now = Moment::now();
        let limit = end.saturating_duration_since(now.instant);
        let current = self.link_to_ask();
        if let Some(link) = &current {
            // Half the time, and longer if the link was heard of lately: a caller in a hurry must
            // not cost the others a connection that is only slow.
            let patience = if repeat == Repeat::Never { Duration::MAX } else { limit / 2 };
            let limits = Limits { asked: now, patience, end };
            match self.send(link, &pipeline(link).into(), &limits).await {
                Ok(Some(answers)) => return Ok(Exchange { link: Arc::clone(link), answers, repeated: false }),
                Err(error) if is_crowded(&error) => return Err(translate(&error)),
                Err(error) if repeat == Repeat::Never => return Err(translate(&error).maybe_applied()),
                Err(error) => debug!(%error, "connection lost"),
                Ok(None) if repeat == Repeat::Never || Instant::now() >= end => return Err(no_reply(limit).maybe_applied()),
                Ok(None) => debug!("no reply after half the operation timeout"),
            }
        }
        // Rare and large: boxed, so that the usual future stays small.
        Box::pin(self.exchange_anew(end, repeat, current.is_some(), limit, pipeline)).await
    }

    /// Exchanges a pipeline on a new link. `repeated`: the pipeline was sent before, without an answer.
    async fn exchange_anew<C: Into<Commands>>(
        &self,
        end: Instant,
        repeat: Repeat,
        repeated: bool,
        limit: Duration,
        pipeline: impl Fn(&Link) -> C + Sync,
    ) -> Result<Exchange, Error> {
        let unanswered = |error: Error| if repeated { error.maybe_applied() } else { error };
        let link = self.replace(end).await.map_err(unanswered)?;
        if repeated && repeat == Repeat::Settled && self.has_late_commands() {
            return Err(Error::unreachable("no reply, and what was sent may still run").maybe_applied());
        }
        let limits = Limits { asked: Moment::now(), patience: Duration::MAX, end };
        match self.send(&link, &pipeline(&link).into(), &limits).await {
            Ok(Some(answers)) => Ok(Exchange { link, answers, repeated }),
            Err(error) if is_crowded(&error) => Err(unanswered(translate(&error))),
            Err(error) => Err(translate(&error).maybe_applied()),
            Ok(None) => Err(no_reply(limit).maybe_applied()),
        }
    }

    /// Sends commands over `link`, as [`Link::send`] does. A link that breaks or is silent for too
    /// long is dropped, even if the caller goes away before it finds out.
    async fn send(&self, link: &Arc<Link>, commands: &Commands, limits: &Limits) -> RedisResult<Option<Answers>> {
        let watch = Watch { connection: self, link, limits };
        let outcome = match self.run_to_confirm(link) {
            None => link.send(commands, limits).await,
            Some(run) => send_to(run, link, commands, limits).await,
        };
        match &outcome {
            // The next one asks anew where the name leads, and logs in.
            Ok(Some(answers)) if answers.iter().any(|answer| answer.as_ref().is_err_and(is_to_be_left)) => {
                std::mem::forget(watch);
                self.drop_link(link);
            }
            // An answer that comes late: the silence was this process's.
            Ok(Some(_)) => std::mem::forget(watch),
            Err(error) if !is_crowded(error) => self.drop_link(link),
            _ => {}
        }
        outcome
    }

    /// The run of the server that has to be confirmed with each answer, because the server does not tell when it drops its data, or
    /// because a proxy may keep the connection beyond the run.
    fn run_to_confirm<'a>(&self, link: &'a Link) -> Option<&'a String> {
        let is_told = !self.pushes.ends_with_data() || link.is_direct && link.tracks() == Some(true);
        if is_told { None } else { link.run_id.get() }
    }
}

/// Sends commands to one run of a server. It is asked last which run it is, so all of them went there.
async fn send_to(run: &str, link: &Link, commands: &Commands, limits: &Limits) -> RedisResult<Option<Answers>> {
    let mut commands = commands.clone();
    Run::ask(&mut commands);
    let Some(mut answers) = link.send(&commands, limits).await? else { return Ok(None) };
    match Run::read_last(&mut answers) {
        Ok(answered) if answered.id() == run => Ok(Some(answers)),
        // It says why.
        Err(_) if answers.iter().all(Result::is_err) => Ok(Some(answers)),
        _ => Err(ended()),
    }
}

/// Drops a link that turns out to be dead while a caller waits for an answer.
struct Watch<'a> {
    connection: &'a Connection,
    link: &'a Arc<Link>,
    limits: &'a Limits,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let Limits { asked, end, .. } = self.limits;
        let bearable = (end.saturating_duration_since(asked.instant) / 2).max(DEAD_AFTER);
        if self.link.silence(asked.ms) >= bearable {
            self.connection.drop_link(self.link);
        }
    }
}

/// Whether another connection may serve where this one does not: the server is no master, or is away behind a proxy, or the login is
/// over.
fn is_to_be_left(error: &RedisError) -> bool {
    is_no_master(error) || is_logged_out(error) || is_away(error)
}

fn no_reply(limit: Duration) -> Error {
    Error::unreachable(format!("no reply within {limit:?}"))
}
