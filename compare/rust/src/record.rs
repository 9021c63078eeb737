//! Records the commands that tenure sends, as the server sees them. The raw socket then sends the same.

use tenure::ReleaseOutcome;

use crate::Failure;
use crate::resp::Socket;

type Command = Vec<Vec<u8>>;

/// The commands of one acquisition and of one release.
pub struct Cycle {
    pub acquire: Vec<Command>,
    pub release: Vec<Command>,
    /// The name of the lock in these commands.
    pub name: String,
    /// The owner token in these commands.
    pub owner: String,
}

/// Has tenure take and release a lock while the server tells what it is sent.
pub async fn cycle(url: &str) -> Result<Cycle, Failure> {
    let locks = tenure_redis::connect(url).await?;
    // The first one also loads scripts and sets the counter up.
    for _ in 0..2 {
        let _ = locks.mutex("compare:warm-up").acquire().await?.release().await?;
    }
    let mut monitor = Socket::connect(url)?;
    answered(&mut monitor, &[b"MONITOR"])?;
    let mut speaker = Socket::connect(url)?;
    let name = "compare:recorded-name".to_owned();
    let guard = locks.mutex(&name).acquire().await?;
    let owner = guard.token().to_string();
    answered(&mut speaker, &[b"ECHO", b"taken"])?;
    let released = guard.release().await?;
    answered(&mut speaker, &[b"ECHO", b"released"])?;
    if !matches!(released, ReleaseOutcome::Released) {
        return Err(format!("the release said {released:?}").into());
    }
    let acquire = until(&mut monitor, b"taken")?;
    let release = until(&mut monitor, b"released")?;
    if acquire.is_empty() || release.is_empty() {
        return Err("the server told of no commands".into());
    }
    Ok(Cycle { acquire, release, name, owner })
}

/// Asks, and waits for the answer.
fn answered(socket: &mut Socket, words: &[&[u8]]) -> Result<(), Failure> {
    socket.ask(words)?;
    while !socket.reply(&mut Vec::new())? {
        socket.fill()?;
    }
    Ok(())
}

/// The commands that clients sent before the one that echoes `what`.
fn until(monitor: &mut Socket, what: &[u8]) -> Result<Vec<Command>, Failure> {
    let mut commands = Vec::new();
    loop {
        let Some(line) = monitor.line() else {
            monitor.fill()?;
            continue;
        };
        match command(line) {
            Some(command) if command.first().is_some_and(|word| word == b"ECHO") && command[1] == what => return Ok(commands),
            Some(command) => commands.push(command),
            None => {}
        }
    }
}

/// The command in `+1700000000.000001 [0 127.0.0.1:5000] "get" "name"`, unless a script called it.
fn command(line: &[u8]) -> Option<Command> {
    let begin = line.windows(3).position(|part| part == b"] \"")?;
    if line[..begin].ends_with(b" lua") {
        return None;
    }
    let (mut words, mut word, mut rest) = (Vec::new(), None, line[begin + 2..].iter().copied());
    while let Some(byte) = rest.next() {
        match (byte, word.as_mut()) {
            (b'"', None) => word = Some(Vec::new()),
            (b'"', Some(_)) => words.extend(word.take()),
            (b'\\', Some(word)) => word.push(match rest.next()? {
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'a' => 7,
                b'b' => 8,
                other => other,
            }),
            (byte, Some(word)) => word.push(byte),
            (_, None) => {}
        }
    }
    Some(words)
}
