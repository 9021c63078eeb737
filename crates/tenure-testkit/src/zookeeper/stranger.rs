//! Calls of a client that is none of ours.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const ANSWER: Duration = Duration::from_secs(10);
/// The timeout that its session asks for, in milliseconds.
const SESSION: i32 = 10_000;
const CREATE: i32 = 1;
const DELETE: i32 = 2;
const CLOSE: i32 = -11;

/// Deletes the node at `path`. Returns the server's error code, 0 for none.
pub(super) fn delete(addr: SocketAddr, path: &str) -> io::Result<i32> {
    let any_version = (-1_i32).to_be_bytes();
    call(addr, DELETE, &[&text(path)?[..], &any_version].concat())
}

/// Makes a node without data that outlives its session, and that anybody may delete. Returns the server's error code, 0 for none.
pub(super) fn create(addr: SocketAddr, path: &str) -> io::Result<i32> {
    let (no_data, one, all, persistent) = (0_i32, 1_i32, 31_i32, 0_i32);
    let acl = [&one.to_be_bytes()[..], &all.to_be_bytes(), &text("world")?, &text("anyone")?].concat();
    call(addr, CREATE, &[&text(path)?[..], &no_data.to_be_bytes(), &acl, &persistent.to_be_bytes()].concat())
}

fn text(text: &str) -> io::Result<Vec<u8>> {
    let length = i32::try_from(text.len()).map_err(io::Error::other)?;
    Ok([&length.to_be_bytes()[..], text.as_bytes()].concat())
}

/// Makes one call in a session of its own.
fn call(addr: SocketAddr, op: i32, body: &[u8]) -> io::Result<i32> {
    let mut stream = TcpStream::connect_timeout(&addr, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    // Version, last zxid, timeout, no session, and its password.
    let hello = [&[0; 12][..], &SESSION.to_be_bytes(), &[0; 8], &16_i32.to_be_bytes(), &[0; 16]].concat();
    exchange(&mut stream, &hello)?;
    let answer = exchange(&mut stream, &[&1_i32.to_be_bytes()[..], &op.to_be_bytes(), body].concat())?;
    exchange(&mut stream, &[2_i32.to_be_bytes(), CLOSE.to_be_bytes()].concat())?;
    // Behind the number of the request and the zxid.
    let code = answer.get(12..16).and_then(|code| code.try_into().ok());
    code.map(i32::from_be_bytes).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Sends a frame and reads one.
fn exchange(stream: &mut TcpStream, frame: &[u8]) -> io::Result<Vec<u8>> {
    let length = i32::try_from(frame.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], frame].concat())?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length)).map_err(io::Error::other)?];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
