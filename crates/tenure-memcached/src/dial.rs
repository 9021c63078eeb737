//! The way to a connection: its address, the login, and what a server has to be.

use std::io;
use std::net::SocketAddr;

use tenure::Error;
use tenure::store::{Credentials, Login};
use tokio::net::{TcpStream, lookup_host};

use crate::options::words;
use crate::protocol::failed;

const TOO_MANY: &[u8] = b"ERROR Too many open connections";
const CAS_OFF: &[u8] = b"STAT cas_enabled no\r\n";

/// Oldest version with all that is used here. Tested with it.
const FLOOR: [u32; 3] = [1, 6, 18];

/// Connects, and logs in. A login that is refused is asked for once more.
pub(crate) async fn dial(host: &str, port: u16, credentials: &Credentials) -> Result<TcpStream, Error> {
    credentials.log_in(|login| dial_as(host, port, login)).await
}

async fn dial_as(host: &str, port: u16, login: Login) -> Result<TcpStream, Error> {
    let words = words(&login)?;
    let cannot = |error: io::Error| Error::unreachable("cannot connect").with_source(error);
    let addrs: Vec<SocketAddr> = lookup_host((host, port)).await.map_err(cannot)?.collect();
    one_server(&addrs)?;
    let stream = tenure::store::connect(addrs, TcpStream::connect).await.map_err(cannot)?;
    stream.set_nodelay(true).map_err(cannot)?;
    if let Some(words) = words {
        log_in(&stream, &words).await?;
    }
    Ok(stream)
}

/// Writes all of it.
pub(crate) async fn write(stream: &TcpStream, mut left: &[u8]) -> Result<(), Error> {
    while !left.is_empty() {
        stream.writable().await.map_err(broken)?;
        match stream.try_write(left) {
            Ok(written) => left = &left[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(())
}

/// Reads until the answer ends so.
pub(crate) async fn read_until(stream: &TcpStream, is_over: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, Error> {
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    while !is_over(&answer) {
        stream.readable().await.map_err(broken)?;
        match stream.try_read(&mut buffer) {
            Ok(0) => return Err(broken(io::ErrorKind::ConnectionReset.into())),
            Ok(length) => answer.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(answer)
}

/// The error of a connection that can be used no more.
pub(crate) fn broken(error: io::Error) -> Error {
    Error::unreachable("the connection broke").with_source(error)
}

/// Refuses a host that is several servers. Each has locks of its own, and clients would not agree on one.
fn one_server(addrs: &[SocketAddr]) -> Result<(), Error> {
    let mut addrs = addrs.to_vec();
    addrs.sort_unstable();
    addrs.dedup();
    // One server may have an address of each kind.
    let many = addrs.iter().filter(|addr| addr.is_ipv4()).count().max(addrs.iter().filter(|addr| addr.is_ipv6()).count());
    if many <= 1 {
        return Ok(());
    }
    let what = format!("the host has {many} addresses: clients would look for one name at several servers");
    Err(Error::refused(what).with_hint("name each server, as memcached://A,B"))
}

/// Logs in as `memcached -Y` wants it: by a command that looks like a write.
async fn log_in(stream: &TcpStream, words: &str) -> Result<(), Error> {
    // A server without logins would keep the password, for everybody to read.
    let version = line(stream, "version\r\n").await?;
    takes_connections(&version)?;
    if !version.ends_with(b"unauthenticated\r\n") {
        let what = "the server wants no user and password, so they were not sent";
        return Err(Error::refused(what).with_hint("leave them out, or start memcached with -Y FILE"));
    }
    if line(stream, &format!("set tenure 0 0 {}\r\n{words}\r\n", words.len())).await? == b"STORED\r\n" {
        return Ok(());
    }
    // Its answer may repeat what it was sent.
    Err(Error::refused("the login is refused").with_hint("check the user and the password"))
}

/// Refuses a server that gives its items no versions.
pub(crate) async fn check_versions(stream: &TcpStream) -> Result<(), Error> {
    write(stream, b"stats settings\r\n").await?;
    // Other programs end with a line of their own. The next command finds them out.
    let is_over = |answer: &[u8]| {
        answer.ends_with(b"END\r\n") || (!b"STAT ".starts_with(&answer[..answer.len().min(5)]) && answer.ends_with(b"\r\n"))
    };
    let settings = read_until(stream, is_over).await?;
    takes_connections(&settings)?;
    if settings.windows(CAS_OFF.len()).any(|part| part == CAS_OFF) {
        let what = "the server was started with -C: nothing can be compared before it is swapped";
        return Err(Error::refused(what).with_hint("start memcached without -C"));
    }
    Ok(())
}

/// Whether the server has taken the connection, by its first answer.
pub(crate) fn takes_connections(answer: &[u8]) -> Result<(), Error> {
    if !answer.starts_with(TOO_MANY) {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(answer).trim_end()))
}

/// Sends a command that is answered by a line.
async fn line(stream: &TcpStream, command: &str) -> Result<Vec<u8>, Error> {
    write(stream, command.as_bytes()).await?;
    read_until(stream, |answer| answer.ends_with(b"\r\n")).await
}

/// Refuses a server that is too old.
pub(crate) fn check_version(version: &str) -> Result<(), Error> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let found = std::array::from_fn::<u32, 3, _>(|_| parts.next().unwrap_or(0));
    if found >= FLOOR {
        return Ok(());
    }
    let [major, minor, patch] = FLOOR;
    Err(Error::refused(format!("the server is memcached {version}")).with_hint(format!("use {major}.{minor}.{patch} or newer")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        for (version, good) in
            [("1.6.18", true), ("1.6.40", true), ("1.7.0-rc1", true), ("2.0", true), ("1.6.9", false), ("", false)]
        {
            assert_eq!(check_version(version).is_ok(), good, "{version}");
        }
    }

    #[test]
    fn a_host_of_several_servers_is_refused() {
        let one_server = |addrs: &[&str]| one_server(&addrs.iter().map(|addr| addr.parse().unwrap()).collect::<Vec<_>>());
        assert!(one_server(&["127.0.0.1:1", "[::1]:1", "127.0.0.1:1"]).is_ok());
        assert!(one_server(&["127.0.0.1:1", "127.0.0.2:1"]).unwrap_err().to_string().contains("2 addresses"));
        assert!(one_server(&["[::1]:1", "[::2]:1", "127.0.0.1:1"]).is_err());
    }
}
