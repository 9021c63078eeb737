//! A listener that answers commands as a test says, in place of a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Answers each command with the bytes that `answer` makes of its words, on any number of connections.
pub(crate) fn listens_as(answer: impl Fn(&[String]) -> Vec<u8> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
                while let Some(words) = command(&mut reader) {
                    if writer.write_all(&answer(&words)).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// The words of the next command: a line with their number, and for each one a line with its length and the bytes.
fn command(reader: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let number = |reader: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        line.trim_end()[1..].parse::<usize>().ok()
    };
    let count = number(reader)?;
    (0..count)
        .map(|_| {
            let mut word = vec![0; number(reader)? + 2];
            reader.read_exact(&mut word).ok()?;
            word.truncate(word.len() - 2);
            String::from_utf8(word).ok()
        })
        .collect()
}
