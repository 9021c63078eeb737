//! The login: one at a time, and its token is kept until the server no longer takes it.

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tenure::Error;
use tenure::store::{Credentials, Login};
use tonic::Request;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;

use crate::failure::{Failed, unexpected};
use crate::grpc::{FIRST_CONTACT, unary};
use crate::proto::{AUTHENTICATE, AuthenticateRequest, AuthenticateResponse};

/// A token, or that the server asks for none.
pub(crate) type Token = Option<AsciiMetadataValue>;

/// A login that all wait for who need its token. It costs the server a tenth of a second of work. If its callers
/// give up, the next one goes on with it.
pub(crate) type Attempt = Shared<BoxFuture<'static, Result<Token, Failed>>>;

/// Begins to log in. A login that is refused is asked for once more.
pub(crate) fn begin(credentials: &Credentials, channel: &Channel, server: &str) -> Attempt {
    let (credentials, channel, server) = (credentials.clone(), channel.clone(), server.to_owned());
    let log_in = async move {
        credentials
            .log_in_with(|failed: &mut Failed| Some(&mut failed.error), |login| authenticate(&channel, &server, login))
            .await
    };
    log_in.boxed().shared()
}

async fn authenticate(channel: &Channel, server: &str, Login { user, password }: Login) -> Result<Token, Failed> {
    // A password alone is nobody's.
    let Some(name) = user.filter(|user| !user.is_empty()) else { return Ok(None) };
    let mut request = Request::new(AuthenticateRequest { name, password: password.unwrap_or_default() });
    request.set_timeout(FIRST_CONTACT);
    let answer: Result<AuthenticateResponse, _> = unary(channel, AUTHENTICATE, request).await;
    match answer.map_err(|status| Failed::in_time(&status, server, FIRST_CONTACT)) {
        Ok(answer) => answer.token.parse().map(Some).map_err(|_| Failed::unsent(unexpected("its token is no text"))),
        // As etcdctl does: a password for a server that asks for none.
        Err(failed) if failed.error.to_string().contains("authentication is not enabled") => Ok(None),
        // A login changes nothing.
        Err(failed) => Err(Failed { error: unapplied(&failed.error), ..failed }),
    }
}

/// Says that the call was not applied: it was never sent.
pub(crate) fn unapplied(error: &Error) -> Error {
    Error::new(error.kind(), error.to_string())
}

#[cfg(test)]
mod tests {
    use tenure::ErrorKind;
    use tonic::Status;

    use super::*;

    /// Else a waiter gives up for good, and no other member is asked.
    #[test]
    fn a_server_that_has_too_much_to_do_is_asked_again() {
        let busy = Failed::of(&Status::resource_exhausted("etcdserver: too many requests"), "x");
        let error = unapplied(&busy.error);
        assert!(error.is_transient() && !error.may_have_been_applied(), "{error:?}");
        let wrong = Status::invalid_argument("etcdserver: authentication failed, invalid user ID or password");
        assert_eq!(unapplied(&Failed::of(&wrong, "x").error).kind(), ErrorKind::Refused);
    }
}
