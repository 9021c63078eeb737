//! Errors of Redis, in the classes of [`tenure::ErrorKind`].

use std::fmt;

use redis::RedisError;
use tenure::{Error, ErrorKind};

use crate::transport::meanings::{
    AWAY, CROWDED, CUT_OFF, CUT_SHORT, DEMOTED, LOST, MEANINGS, Meaning, NO_SENSE, NO_VOTE, REPLICA, UNKNOWN,
};

/// Translates an error of the client library. A server's error means that the command was not
/// applied, but for `UNBLOCKED`. Any other leaves that open.
pub(crate) fn translate(error: &RedisError) -> Error {
    if error.code().is_some() {
        return translate_answer(&text_of(error));
    }
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        return translate_answer(&format!("WRONGPASS {}", error.detail().unwrap_or_default()));
    }
    if error.kind() == redis::ErrorKind::UnexpectedReturnType || error.kind() == redis::ErrorKind::Parse {
        return unexpected(error);
    }
    Error::unreachable(format!("the connection failed: {error}")).maybe_applied()
}

/// Beginning of the message about an answer that no server of this protocol gives.
const SENSELESS: &str = "the server gave an answer that makes no sense here";

/// Whether an answer means nothing here. It may be that of a proxy which has no server behind it.
pub(crate) fn is_unknown(error: &Error) -> bool {
    error.kind() == ErrorKind::Refused && [UNKNOWN.what, SENSELESS].iter().any(|what| error.to_string().starts_with(what))
}

/// An answer that no server of this protocol gives.
pub(crate) fn unexpected(what: impl std::fmt::Display) -> Error {
    Error::refused(format!("{SENSELESS}: {what}")).maybe_applied().with_hint("make sure that it is a Redis or Valkey server")
}

/// The error of a greeting whose answer means nothing, while that is taken for an outage.
pub(crate) fn no_server(error: &Error) -> Error {
    Error::unavailable(format!("{NO_SENSE}: {error}")).with_hint("look at what answers there")
}

/// Whether an error is none that a server of this protocol gives to a command that it does not know, or cannot run.
pub(crate) fn is_senseless(error: &RedisError) -> bool {
    const ABOUT_COMMANDS: &[&str] = &[
        "ERR unknown",
        "ERR Unknown",
        "ERR wrong number",
        "ERR syntax",
        "ERR Function",
        "ERR Library",
        "ERR Error",
        "ERR EXEC",
        "EXECABORT",
        "NOSCRIPT",
    ];
    let text = text_of(error);
    let is_of_a_script = error.detail().is_some_and(|detail| detail.contains("script"));
    let has_sense = is_of_a_script || ABOUT_COMMANDS.iter().any(|start| text.starts_with(start));
    error.code().is_some() && !has_sense && is_unknown(&translate_answer(&text))
}

/// The error in place of one that makes no sense.
pub(crate) fn away(error: &RedisError) -> RedisError {
    redis::make_extension_error(AWAY.to_owned(), Some(text_of(error)))
}

/// Whether the answer made no sense.
pub(crate) fn is_away(error: &RedisError) -> bool {
    error.code() == Some(AWAY)
}

/// Nothing was sent: the submission queue is full.
pub(crate) fn crowded() -> RedisError {
    redis::make_extension_error(CROWDED.to_owned(), None)
}

pub(crate) fn is_crowded(error: &RedisError) -> bool {
    error.code() == Some(CROWDED)
}

/// Whether a node does not vote, or is another run of the server than the client knows.
pub(crate) fn is_lost(error: &RedisError) -> bool {
    error.code() == Some(LOST)
}

/// The same of a translated error.
pub(crate) fn is_about_the_vote(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.to_string().starts_with(NO_VOTE)
}

pub(crate) fn is_noscript(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Whether the server has no function of that name.
pub(crate) fn is_unknown_function(error: &RedisError) -> bool {
    text_of(error).starts_with("ERR Function not found")
}

/// Whether functions cannot be used: by this server, by this user, or while the server is out of
/// memory. Then it lets a script write if nothing grows, and no function.
pub(crate) fn is_no_function(error: &RedisError) -> bool {
    let text = text_of(error);
    // Another error may contain the name of a lock.
    let about_commands = ["ERR", "NOPERM"].iter().any(|start| text.starts_with(start));
    is_unknown_function(error) || is_out_of_memory(error) || about_commands && text.to_lowercase().contains("fcall")
}

/// Whether the server does not have the command, or this user may not send it.
pub(crate) fn is_no_command(error: &RedisError) -> bool {
    let text = text_of(error);
    text.starts_with("ERR unknown command") || text.starts_with("NOPERM") && text.contains(" command")
}

/// Whether this user may not do it.
pub(crate) fn is_not_permitted(error: &RedisError) -> bool {
    text_of(error).starts_with("NOPERM")
}

pub(crate) fn is_out_of_memory(error: &RedisError) -> bool {
    error.code() == Some("OOM")
}

/// Whether the server is no master, so that none of its answers is about the locks that others have.
pub(crate) fn is_no_master(error: &RedisError) -> bool {
    let text = text_of(error);
    [REPLICA, DEMOTED, CUT_OFF].into_iter().flatten().any(|start| text.starts_with(start))
}

/// Whether the connection is not logged in any more.
pub(crate) fn is_logged_out(error: &RedisError) -> bool {
    error.code() == Some("NOAUTH")
}

/// Whether the server may have another grant counter than the one that was raised.
pub(crate) fn doubts_counter(error: &RedisError) -> bool {
    let text = text_of(error);
    ["READONLY", "MOVED", "ASK", "LOADING"].iter().any(|start| text.starts_with(start))
}

fn text_of(error: &RedisError) -> String {
    let text = format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
    without_script(&text).trim_end().to_owned()
}

/// The error without its position in a script, which does not help the reader. Redis 6.2 puts that
/// in front, as
/// `ERR Error running script (call to f_<sha>): @user_script:4: @user_script: 4: -OOM ...` or a
/// part of it. Redis 7.0 puts it behind.
fn without_script(text: &str) -> &str {
    let Some((_, rest)) = text.rsplit_once("@user_script:").filter(|(before, _)| !before.contains(" script: ")) else {
        return text.split(" script: ").next().unwrap_or(text);
    };
    let error = rest.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
    error.strip_prefix(": ").unwrap_or(error).trim_start_matches('-')
}

/// The capacity that a name has, if a script refuses another kind of lock, and the key of the name
/// if the script was asked about several.
pub(crate) fn other_capacity(error: &RedisError) -> Option<(u32, String)> {
    let text = text_of(error);
    let (_, rest) = text.strip_prefix("TENUREKIND ")?.split_once("a capacity of ")?;
    let (capacity, key) = rest.split_once(" at ").unwrap_or((rest, ""));
    Some((capacity.parse().ok()?, key.to_owned()))
}

/// The error without the code that only our scripts use.
fn without_word(text: &str) -> &str {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    if word.starts_with("TENURE") { rest } else { text }
}

/// Source of the error for a slot whose keys are in two places: each of them can be reached, but not
/// several at once.
#[derive(Debug)]
struct Moving(String);

impl fmt::Display for Moving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Moving {}

/// Whether the keys of a slot are in two places.
pub(crate) fn is_moving(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<Moving>)
}

pub(crate) fn translate_answer(text: &str) -> Error {
    let means = |meaning: &&Meaning| meaning.starts.iter().any(|start| text.starts_with(start));
    let Meaning { kind, what, fix, maybe, .. } = MEANINGS.iter().find(means).unwrap_or(&UNKNOWN);
    let error = match without_word(text) {
        "" => Error::new(*kind, *what),
        told if text.starts_with("TRYAGAIN") || CUT_SHORT.iter().any(|start| text.starts_with(start)) => {
            Error::new(*kind, *what).with_source(Moving(told.to_owned()))
        }
        told => Error::new(*kind, format!("{what} ({told})")),
    };
    let error = error.with_hint(*fix);
    if *maybe { error.maybe_applied() } else { error }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::page::{errors, told};

    use super::*;

    #[test]
    fn errors_in_scripts_are_those_of_their_commands() {
        for text in [
            "OOM command not allowed when used memory > 'maxmemory'. script: 52ab, on @user_script:12.",
            "ERR Error running script (call to f_52ab): @user_script:12: @user_script: 12: -OOM command not allowed when used memory > 'maxmemory'.",
            "@user_script: 12: -OOM command not allowed when used memory > 'maxmemory'.",
            "OOM command not allowed when used memory > 'maxmemory'.",
        ] {
            assert_eq!(without_script(text), "OOM command not allowed when used memory > 'maxmemory'.");
        }
        let wrong = "ERR Error running script (call to f_52ab): @user_script:1: WRONGTYPE Operation against a key";
        assert_eq!(without_script(wrong), "WRONGTYPE Operation against a key");
        let forbidden =
            "ERR Error running script (call to f_52ab): @user_script:1: @user_script: 1: The user executing the script can't";
        assert_eq!(translate_answer(without_script(forbidden)).kind(), ErrorKind::Refused);
        assert!(without_script(forbidden).starts_with("The user executing the script"));
    }

    #[test]
    fn a_lock_may_have_the_name_of_a_command() {
        for (code, text, forbidden) in [
            ("ERR", "unknown command 'FCALL', with args beginning with: 'tenure_release_0'", true),
            ("NOPERM", "this user has no permissions to run the 'fcall' command", true),
            ("TENUREKIND", "it is in use with a capacity of 3 at fcall", false),
            ("WRONGTYPE", "Operation against a key holding the wrong kind of value at fcall", false),
        ] {
            let error = redis::make_extension_error(code.to_owned(), Some(text.to_owned()));
            assert_eq!(is_no_function(&error), forbidden, "{code} {text}");
        }
    }

    #[test]
    fn our_own_words_for_scripts_are_not_told() {
        let text = "TENURECLOCK the server is 60.0 s ahead of this host";
        let told = translate_answer(text).to_string();
        assert!(told.contains("(the server is 60.0 s ahead of this host)") && !told.contains("TENURE"), "{told}");
        let told = translate(&crowded()).to_string();
        assert!(!told.contains("TENURE") && !told.contains("()"), "{told}");
    }

    /// docs/errors.md has each line of the table, and says of it what the table does.
    #[test]
    fn the_page_of_errors_is_true() {
        let page = errors("Redis");
        for (text, expected) in &page {
            let error = translate_answer(&format!("{text} of the server"));
            assert_eq!(told(&error), *expected, "{text}");
            assert!(error.to_string().contains(text), "{error}");
        }
        for start in MEANINGS.iter().flat_map(|meaning| meaning.starts).filter(|start| !start.starts_with("TENURE")) {
            assert!(page.iter().any(|(text, _)| text == start), "{start} is not on the page");
        }
        let setting = "ERR WAITAOF cannot be used when appendonly is disabled.";
        assert_eq!(translate_answer(setting).kind(), ErrorKind::Refused, "a replica has another answer");
    }
}
