//! The keys of a server. memcached has no command for clients that lists them, but one for operators.

use tenure::Error;
use tenure::store::Credentials;

use crate::dial::{dial, read_until, takes_connections, write};
use crate::protocol::Key;

/// All keys that are text.
pub(crate) async fn keys(host: &str, port: u16, credentials: &Credentials) -> Result<Vec<String>, Error> {
    let stream = dial(host, port, credentials).await?;
    let is_over = |answer: &[u8]| answer.ends_with(b"END\r\n") || (answer.ends_with(b"\r\n") && !answer.starts_with(b"key="));
    // By the table of keys. A walk over the lists of items leaves out those that the server has in hand or moves just then.
    write(&stream, b"lru_crawler metadump hash\r\n").await?;
    let mut answer = read_until(&stream, is_over).await?;
    if answer.starts_with(b"BADCLASS") {
        // A server before 1.6.10 takes the word for the number of a list.
        write(&stream, b"lru_crawler metadump all\r\n").await?;
        answer = read_until(&stream, is_over).await?;
    }
    takes_connections(&answer)?;
    let text = String::from_utf8_lossy(&answer);
    if let Some(error) = text.lines().next().filter(|line| !line.starts_with("key=") && *line != "END") {
        return Err(refused(error));
    }
    // The server escapes what it lists.
    let key = |line: &str| Key::name(line.strip_prefix("key=")?.split(' ').next()?);
    Ok(text.lines().filter_map(key).collect())
}

fn refused(text: &str) -> Error {
    if text.starts_with("BUSY") || text.starts_with("locked") {
        return Error::unavailable("the server lists its keys for another client").with_hint("try again");
    }
    Error::refused(format!("the server does not list its keys: {text}"))
        .with_hint("name the lock, or start memcached with lru_crawler")
}
