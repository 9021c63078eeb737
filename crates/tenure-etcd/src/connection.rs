//! The way to etcd: one member at a time, and another one if that fails.

use std::fmt;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select, try_join_all};
use futures_util::{StreamExt as _, stream};
use http::uri::PathAndQuery;
use prost::Message;
use tenure::store::{Credentials, too_few, turn};
use tenure::{Error, ErrorKind};
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, timeout_at};
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::failure::Failed;
use crate::grpc::{USUAL, unary, unary_up_to};
use crate::login::{self, Attempt, Token, unapplied};
use crate::proto::{Answer, Header, STATUS, StatusRequest, StatusResponse};

/// A way to a member, and how it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) endpoint: Endpoint,
    pub(crate) shown: String,
}

pub(crate) struct Connection {
    members: Vec<Member>,
    credentials: Credentials,
    shown: String,
    /// The cluster of the first answer.
    cluster: OnceLock<u64>,
    state: Mutex<State>,
    /// One dials at a time, and the others use what it has got.
    dialing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The member in use, or to be tried first.
    at: usize,
    /// One for each runtime.
    lives: Vec<Live>,
    /// All members know it.
    token: Option<Token>,
    /// The login that goes on, with the number of its connection.
    attempt: Option<(u64, Attempt)>,
    /// Number of connections so far: an old failure does not end a new connection.
    made: u64,
}

#[derive(Clone)]
struct Live {
    channel: Channel,
    /// The connection is served by a task of this runtime, and ends with it.
    runtime: Id,
    number: u64,
    at: usize,
}

impl Connection {
    pub(crate) fn new(members: Vec<Member>, credentials: Credentials, shown: String) -> Self {
        Self {
            members,
            credentials,
            shown,
            cluster: OnceLock::new(),
            state: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
        }
    }

    /// One request and its answer.
    ///
    /// # Cancel safety
    /// A future that is dropped ends its own stream of the connection alone. The request may be
    /// executed.
    pub(crate) async fn call<Q, A>(&self, path: &'static str, request: Q, end: Instant) -> Result<A, Failed>
    where
        Q: Message + Clone + Default + 'static,
        A: Answer,
    {
        self.call_up_to(USUAL, path, request, end).await
    }

    /// A request whose answer may be of any length.
    pub(crate) async fn call_large<Q, A>(&self, path: &'static str, request: Q, end: Instant) -> Result<A, Failed>
    where
        Q: Message + Clone + Default + 'static,
        A: Answer,
    {
        self.call_up_to(usize::MAX, path, request, end).await
    }

    async fn call_up_to<Q, A>(&self, most: usize, path: &'static str, request: Q, end: Instant) -> Result<A, Failed>
    where
        Q: Message + Clone + Default + 'static,
        A: Answer,
    {
        let token = self.state().token.clone();
        match self.once(most, path, request.clone(), end).await {
            // Not applied: the server looks at the token first.
            Err(failed) if failed.needs_login() && self.logs_in() => {
                // Another call may have a new one.
                self.state().token.take_if(|present| Some(&*present) == token.as_ref());
                self.once(most, path, request, end).await
            }
            answer => answer,
        }
    }

    async fn once<Q, A>(&self, most: usize, path: &'static str, message: Q, end: Instant) -> Result<A, Failed>
    where
        Q: Message + Default + 'static,
        A: Answer,
    {
        let live = self.live(end).await?;
        let request = self.request(message, &live, end).await?;
        let answer: A = self.answered(&live, end, unary_up_to(most, &live.channel, path, request)).await?;
        self.recognise(answer.header()).inspect_err(|_| self.leave(&live))?;
        Ok(answer)
    }

    /// Refuses an answer of another cluster than that of the first answer.
    pub(crate) fn recognise(&self, header: Option<&Header>) -> Result<(), Failed> {
        let cluster = header.map_or(0, |header| header.cluster);
        let is_known = cluster == 0 || *self.cluster.get_or_init(|| cluster) == cluster;
        if is_known { Ok(()) } else { Err(Failed::of_another_cluster(&self.shown)) }
    }

    /// Asks a member in turn for its first answer, each for a share of the time.
    ///
    /// Meanwhile the other members are asked which cluster they are of. Those that do not say so in time are asked by
    /// the first call that they get.
    pub(crate) async fn first<Q, A>(&self, path: &'static str, request: Q, end: Instant) -> Result<A, Failed>
    where
        Q: Message + Clone + Default + 'static,
        A: Answer,
    {
        let others = async {
            // One of them may be that which is asked.
            let others = if self.members.len() > 1 { &self.members[..] } else { &[] };
            let each = others.iter().map(async |member| match self.dial(member, end).await {
                Ok(channel) => {
                    let answer: Result<StatusResponse, _> = unary(&channel, STATUS, Request::new(StatusRequest {})).await;
                    answer.map_or(Ok(()), |answer| self.recognise(answer.header()))
                }
                Err(_) => Ok(()),
            });
            try_join_all(each).await.map(drop)
        };
        let (others, asked) = (pin!(others), pin!(self.in_turn(path, request, end)));
        match select(asked, others).await {
            Either::Left((answer, others)) => {
                let answer = answer?;
                timeout_at(Instant::now() + OTHERS, others).await.unwrap_or(Ok(())).map(|()| answer)
            }
            Either::Right((others, asked)) => {
                others?;
                asked.await
            }
        }
    }

    async fn in_turn<Q, A>(&self, path: &'static str, request: Q, end: Instant) -> Result<A, Failed>
    where
        Q: Message + Clone + Default + 'static,
        A: Answer,
    {
        let mut failures = Vec::new();
        for (at, left) in (1..=self.members.len()).rev().enumerate() {
            let now = Instant::now();
            let until = now + turn(end.saturating_duration_since(now), left);
            let asked = match self.connect(at, until).await {
                Ok(_) => self.call(path, request.clone(), until).await,
                Err(error) => Err(Failed::unsent(error)),
            };
            match asked {
                // The next one would say so as well. Of logins it may know more.
                Err(refused) if refused.heard && refused.error.kind() == ErrorKind::Refused && !refused.is_no_login() => {
                    return Err(refused);
                }
                Err(failed) => failures.push(failed.error),
                answer => return answer,
            }
            if let Some(live) = self.present() {
                self.leave(&live);
            }
        }
        Err(Failed::unsent(too_few("no member can be used", self.members.len().saturating_sub(1), 0, failures)))
    }

    /// Begins a call of several requests or answers.
    pub(crate) async fn stream<Q, A>(
        &self,
        path: &'static str,
        requests: Vec<Q>,
        stays: bool,
        end: Instant,
    ) -> Result<Streaming<A>, Failed>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let live = self.live(end).await?;
        let requests = stream::iter(requests);
        let requests = if stays { requests.chain(stream::pending()).boxed() } else { requests.boxed() };
        let mut request = Request::new(requests);
        if let Some(token) = self.token(&live, end).await? {
            request.metadata_mut().insert("token", token);
        }
        // A member that has lost its leader ends the stream.
        request.metadata_mut().insert("hasleader", AsciiMetadataValue::from_static("true"));
        let call = async {
            let mut grpc = Grpc::new(live.channel.clone());
            grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.streaming(request, PathAndQuery::from_static(path), codec).await.map(tonic::Response::into_inner)
        };
        self.answered(&live, end, call).await
    }

    /// Waits for an answer, and leaves a member that has none.
    async fn answered<T>(
        &self,
        live: &Live,
        end: Instant,
        call: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, Failed> {
        let (limit, server) = (end.saturating_duration_since(Instant::now()), &self.members[live.at].shown);
        let failed = match timeout_at(end, call).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(status)) => Failed::in_time(&status, server, limit),
            Err(_) => Failed::silent(server, limit),
        };
        if failed.leaves {
            self.leave(live);
        }
        Err(failed)
    }

    /// Uses the next member from now on.
    fn leave(&self, live: &Live) {
        let mut state = self.state();
        if state.lives.extract_if(.., |present| present.number == live.number).count() > 0 {
            state.at = (live.at + 1) % self.members.len();
        }
    }

    async fn live(&self, end: Instant) -> Result<Live, Failed> {
        if let Some(live) = self.present() {
            return Ok(live);
        }
        let silent = |_| Failed::unsent(Error::unreachable(format!("{self} did not answer in time")));
        let _turn = timeout_at(end, self.dialing.lock()).await.map_err(silent)?;
        if let Some(live) = self.present() {
            return Ok(live);
        }
        let first = self.state().at;
        let mut last = None;
        for tried in 0..self.members.len() {
            let (at, now) = ((first + tried) % self.members.len(), Instant::now());
            let until = now + turn(end.saturating_duration_since(now), self.members.len() - tried);
            match self.connect(at, until).await {
                Ok(live) => return Ok(live),
                Err(error) => last = Some(error),
            }
        }
        Err(Failed::unsent(last.unwrap_or_else(|| Error::unreachable("there is no member"))))
    }

    /// Uses this member from now on.
    async fn connect(&self, at: usize, end: Instant) -> Result<Live, Error> {
        let channel = self.dial(&self.members[at], end).await?;
        let mut state = self.state();
        state.made += 1;
        let live = Live { channel, runtime: Handle::current().id(), number: state.made, at };
        state.at = at;
        // The earliest one is that of a runtime that has ended, if there are so many.
        if state.lives.len() >= RUNTIMES {
            state.lives.remove(0);
        }
        state.lives.push(live.clone());
        Ok(live)
    }

    async fn dial(&self, member: &Member, end: Instant) -> Result<Channel, Error> {
        let Member { endpoint, shown } = member;
        match timeout_at(end, endpoint.connect()).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) => {
                let mut cause: &dyn std::error::Error = &error;
                while let Some(deeper) = cause.source() {
                    cause = deeper;
                }
                Err(Error::unreachable(format!("cannot connect to {shown}: {cause}")))
            }
            Err(_) => Err(Error::unreachable(format!("cannot connect to {shown}: no answer in time"))),
        }
    }

    fn present(&self) -> Option<Live> {
        let runtime = Handle::current().id();
        self.state().lives.iter().find(|live| live.runtime == runtime).cloned()
    }

    async fn request<Q>(&self, message: Q, live: &Live, end: Instant) -> Result<Request<Q>, Failed> {
        let mut request = Request::new(message);
        // So that the server drops a request that is too late.
        request.set_timeout(end.saturating_duration_since(Instant::now()));
        if let Some(token) = self.token(live, end).await? {
            request.metadata_mut().insert("token", token);
        }
        Ok(request)
    }

    /// Whether there may be a user to log in as.
    fn logs_in(&self) -> bool {
        self.credentials.fixed().is_none_or(|login| login.user.is_some_and(|user| !user.is_empty()))
    }

    async fn token(&self, live: &Live, end: Instant) -> Result<Token, Failed> {
        if !self.logs_in() {
            return Ok(None);
        }
        let server = &self.members[live.at].shown;
        let attempt = {
            let mut state = self.state();
            if let Some(token) = &state.token {
                return Ok(token.clone());
            }
            let begun = state.attempt.take().filter(|(number, _)| *number == live.number).map(|(_, attempt)| attempt);
            let attempt = begun.unwrap_or_else(|| login::begin(&self.credentials, &live.channel, server));
            state.attempt = Some((live.number, attempt.clone()));
            attempt
        };
        let began = Instant::now();
        let Ok(answer) = timeout_at(end, attempt.clone()).await else {
            // It takes its time, and the next call goes on with it. So the member is not left.
            let silent = Failed::silent(server, end.saturating_duration_since(began));
            let error = self.credentials.unanswered().unwrap_or_else(|| unapplied(&silent.error));
            return Err(Failed { error, leaves: false, ..silent });
        };
        let mut state = self.state();
        if state.attempt.take_if(|(_, present)| present.ptr_eq(&attempt)).is_some() {
            state.token = answer.clone().ok();
        }
        drop(state);
        if answer.as_ref().is_err_and(|failed| failed.leaves) {
            self.leave(live);
        }
        answer
    }

    /// Number of the latest connection.
    pub(crate) fn number(&self) -> u64 {
        self.state().made
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connections at a time, at most.
const RUNTIMES: usize = 8;
/// How much longer the other members have to say which cluster they are of.
const OTHERS: Duration = Duration::from_millis(100);

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({self})")
    }
}
