//! A database as its connections see it.

use std::time::Duration;

use async_trait::async_trait;
use tenure::Error;
use tokio::time::Instant;

use super::failure::no_answer;
use super::link::{Link, Session};

/// The pause between two looks whether a session has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// How a database is connected to, and asked.
#[async_trait]
pub(crate) trait Server: Send + Sync + 'static {
    /// One connection.
    type Client: Send + Sync + 'static;
    /// A statement with its arguments.
    type Call<'a>: Copy + Send + Sync;
    /// Its answer.
    type Answer: Send;

    /// Connects to the first server that can be used, for a call that has `limit` for it. With `create`, makes the table if it is
    /// missing.
    async fn open(&self, create: bool, limit: Duration) -> Result<Link<Self::Client>, Error>;

    /// Runs a statement. It is sent by `end`, or not at all if it has to wait for a connection.
    async fn run(&self, client: &Self::Client, call: Self::Call<'_>, end: Instant) -> Result<Self::Answer, Failed>;

    /// Tells the server to end a session. Returns whether it is over.
    async fn end_session(&self, client: &Self::Client, session: &Session) -> Result<bool, Failed>;

    /// Has notifications come on a connection.
    async fn listen(&self, client: &Self::Client) -> Result<(), Failed>;

    /// Address at which this store is notified. `None` if it does not listen.
    fn address(&self) -> Option<&str>;

    fn is_closed(&self, client: &Self::Client) -> bool;

    /// How long after its end a statement that may take `limit` can still run, if nobody can end it.
    fn lateness(&self, limit: Duration) -> Duration;

    /// There is a new connection, so notifications may have been lost.
    fn reconnected(&self);

    /// The error of a connection that had to wait too long for its login. `None` if it waits for another thing.
    fn no_login(&self) -> Option<Error>;

    /// The servers, without secrets.
    fn shown(&self) -> &str;
}

/// A failed statement.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The server answered so.
    pub(crate) answered: bool,
    /// The connection should not be used any more.
    pub(crate) is_over: bool,
}

/// Ends a session, and looks until it is over. Returns whether it was still there, or nothing if it stays until then.
pub(crate) async fn end_session<S: Server>(
    server: &S,
    client: &S::Client,
    session: &Session,
    until: Instant,
) -> Result<Option<bool>, Failed> {
    let mut was_there = false;
    while !server.end_session(client, session).await? {
        was_there = true;
        if until.saturating_duration_since(Instant::now()) <= PAUSE {
            return Ok(None);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Some(was_there))
}

/// The error of a connection that was not made within the limit.
pub(crate) fn silent(server: &impl Server, limit: Duration) -> Error {
    server.no_login().unwrap_or_else(|| no_answer(limit))
}

/// The end of a statement that has no limit of its own: its caller waits for less.
pub(crate) fn no_end() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}
