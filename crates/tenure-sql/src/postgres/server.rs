//! PostgreSQL as the connection of a store sees it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tenure::Error;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::client::Argument;
use super::clock::LATE;
use super::pool::Job;
use super::source::{Client, How, Source};
use super::statements::LISTEN;
use super::{dial, failure};
use crate::table::{Failed, Jobs, Link, Server, Session, no_end};

#[async_trait]
impl Server for How {
    type Client = Client;
    type Call<'a> = (&'a str, &'a [Argument<'a>]);
    type Answer = Vec<Row>;

    async fn open(&self, create: bool, limit: Duration) -> Result<Link<Client>, Error> {
        let lender = match &self.source {
            Source::Servers { config, tls } => return dial::open(self, (config, tls.as_ref()), create, limit).await,
            Source::Pool(lender) => lender,
        };
        // Once is enough, unless the table was dropped: each statement may have another connection.
        if create || self.statements.get().is_none() {
            let (hello, sent_at) = lender.check(async |client| dial::hello(client, self, create).await).await?;
            self.clock.start(hello.now, sent_at);
        }
        let (jobs, driver) = Jobs::start(lender.clone());
        Ok(Link::new(Client::Lent(jobs), driver, None))
    }

    async fn run(&self, client: &Client, (sql, arguments): Self::Call<'_>, end: Instant) -> Result<Vec<Row>, Failed> {
        match client {
            Client::Own(client) => {
                let answer = failure::while_overtaken(|| client.query(sql, arguments)).await;
                answer.map_err(|error| failure::failed(&error, &self.table))
            }
            Client::Lent(jobs) => {
                let unsent = |error| Failed { error, answered: true, is_over: false };
                let ended = || {
                    let error = Error::unreachable("the connection failed: it was closed").maybe_applied();
                    Failed { error, answered: false, is_over: true }
                };
                let job = Job::new(sql, arguments, end).map_err(unsent)?;
                jobs.run(job).await.unwrap_or_else(|| Err(ended()))
            }
        }
    }

    async fn end_session(&self, client: &Client, session: &Session) -> Result<bool, Failed> {
        let id = i32::try_from(session.id).unwrap_or(-1);
        let arguments: [Argument<'_>; 2] = [(&id, Type::INT4), (&session.began, Type::TEXT)];
        Ok(self.run(client, (&self.statements().end_session, &arguments), no_end()).await?.is_empty())
    }

    async fn listen(&self, client: &Client) -> Result<(), Failed> {
        let (Some(channel), Client::Own(client)) = (&self.channel, client) else { return Ok(()) };
        client.execute(&format!("{LISTEN}{channel}")).await.map_err(|error| failure::failed(&error, &self.table))
    }

    fn address(&self) -> Option<&str> {
        self.channel.as_deref().filter(|_| !self.is_pooled.load(Ordering::Acquire))
    }

    fn is_closed(&self, client: &Client) -> bool {
        match client {
            Client::Own(client) => client.is_closed(),
            Client::Lent(jobs) => jobs.is_closed(),
        }
    }

    fn lateness(&self, limit: Duration) -> Duration {
        // It may wait for a row when it has begun.
        LATE + limit / 3
    }

    fn reconnected(&self) {
        self.listeners.poll_all();
    }

    fn no_login(&self) -> Option<Error> {
        self.credentials.unanswered()
    }

    fn shown(&self) -> &str {
        &self.shown
    }
}
