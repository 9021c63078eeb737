//! The limit: sockets that do what tenure does, without tenure, without an async runtime, without a thought for failures.
//!
//! A cycle is the commands that tenure sends for one, many of them in flight on one connection. A hand-over is a `PUBLISH` and its push
//! between two connections, to and fro.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Failure;
use crate::drive::{Case, Sheet, Task, WARM_UP, cpu_at};
use crate::record::{self, Cycle};
use crate::resp::{Socket, put};

pub async fn measure(task: &Task) -> Result<Value, Failure> {
    match task.case {
        Case::Cycle => cycles(task, &record::cycle(&task.url).await?),
        Case::Handover => pushes(task),
        Case::HandoverFast => Ok(json!({ "not_run": "pushes are not asked for" })),
    }
}

/// One half of a cycle, ready to be written, and the shape of its replies.
struct Step {
    bytes: Vec<u8>,
    commands: usize,
    shape: Vec<u8>,
}

/// One of those in flight.
struct Flight {
    steps: [Step; 2],
    next: usize,
    began: Instant,
}

fn cycles(task: &Task, cycle: &Cycle) -> Result<Value, Failure> {
    let mut socket = Socket::connect(&task.url)?;
    let mut flights = Vec::new();
    for number in 0..task.tasks {
        let mut steps = [step(&cycle.acquire, cycle, number), step(&cycle.release, cycle, number)];
        for step in &mut steps {
            socket.write(&step.bytes)?;
            step.shape = shape(&mut socket, step.commands)?;
        }
        flights.push(Flight { steps, next: 0, began: Instant::now() });
    }
    let mut sheet = Sheet::new(task.time);
    let warm = Instant::now() + WARM_UP;
    let mut used = None;
    let (mut waiting, mut out, mut found) = (VecDeque::new(), Vec::new(), Vec::new());
    for (number, flight) in flights.iter_mut().enumerate() {
        flight.began = Instant::now();
        out.extend_from_slice(&flight.steps[0].bytes);
        waiting.push_back((number, flight.steps[0].commands));
    }
    let mut goes_on = true;
    while goes_on {
        socket.write(&out)?;
        out.clear();
        socket.fill()?;
        while let Some((number, left)) = waiting.front_mut() {
            if !socket.reply(&mut found)? {
                break;
            }
            *left -= 1;
            if *left > 0 {
                continue;
            }
            let flight = &mut flights[*number];
            if flight.steps[flight.next].shape != found {
                return Err("a reply is not as tenure's: the name was taken, or lost".into());
            }
            found.clear();
            flight.next = 1 - flight.next;
            if flight.next == 0 {
                let now = Instant::now();
                goes_on &= sheet.count(flight.began, now);
                flight.began = now;
            }
            let step = &flight.steps[flight.next];
            out.extend_from_slice(&step.bytes);
            let number = *number;
            waiting.pop_front();
            waiting.push_back((number, step.commands));
        }
        if used.is_none() && Instant::now() >= warm {
            used = Some(cpu_at("begin"));
        }
    }
    sheet.figures(cpu_at("end").saturating_sub(used.unwrap_or_default()))
}

/// The commands with a name and an owner of flight `number`.
fn step(commands: &[Vec<Vec<u8>>], cycle: &Cycle, number: usize) -> Step {
    let name = format!("compare:raw:{number}");
    let owner = format!("{number:0width$}", width = cycle.owner.len());
    let mut bytes = Vec::new();
    for command in commands {
        let words: Vec<Vec<u8>> = command
            .iter()
            .map(|word| {
                replaced(&replaced(word, cycle.name.as_bytes(), name.as_bytes()), cycle.owner.as_bytes(), owner.as_bytes())
            })
            .collect();
        put(&mut bytes, &words.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    Step { bytes, commands: commands.len(), shape: Vec::new() }
}

fn replaced(word: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let Some(at) = word.windows(what.len()).position(|part| part == what) else { return word.to_vec() };
    [&word[..at], by, &word[at + what.len()..]].concat()
}

fn shape(socket: &mut Socket, commands: usize) -> Result<Vec<u8>, Failure> {
    let mut shape = Vec::new();
    for _ in 0..commands {
        while !socket.reply(&mut shape)? {
            socket.fill()?;
        }
    }
    Ok(shape)
}

fn pushes(task: &Task) -> Result<Value, Failure> {
    const CHANNELS: [&[u8]; 2] = [b"compare:ping", b"compare:pong"];
    let mut ends = Vec::new();
    for channel in CHANNELS {
        let mut listener = Socket::connect(&task.url)?;
        listener.ask(&[b"SUBSCRIBE", channel])?;
        shape(&mut listener, 1)?;
        ends.push((listener, Socket::connect(&task.url)?));
    }
    let sheet = Arc::new(Mutex::new((Sheet::new(task.time), Instant::now())));
    let mut threads = Vec::new();
    for (number, (mut listener, mut speaker)) in ends.into_iter().enumerate() {
        let sheet = Arc::clone(&sheet);
        threads.push(std::thread::spawn(move || -> Result<(), Failure> {
            let mut begins = number == 0;
            loop {
                if !std::mem::take(&mut begins) {
                    shape(&mut listener, 1)?;
                }
                let (began, now) = {
                    let mut sheet = sheet.lock().unwrap_or_else(PoisonError::into_inner);
                    let now = Instant::now();
                    (std::mem::replace(&mut sheet.1, now), now)
                };
                speaker.ask(&[b"PUBLISH", CHANNELS[1 - number], b"x"])?;
                if !sheet.lock().unwrap_or_else(PoisonError::into_inner).0.count(began, now) {
                    return Ok(());
                }
                shape(&mut speaker, 1)?;
            }
        }));
    }
    std::thread::sleep(WARM_UP);
    let before = cpu_at("begin");
    std::thread::sleep(task.time);
    let used = cpu_at("end") - before;
    // The other end waits for a push that does not come.
    std::thread::sleep(Duration::from_millis(20));
    if let Some(ended) = threads.into_iter().find(|thread| thread.is_finished()) {
        ended.join().map_err(|_| "a thread broke down")??;
    }
    let mut sheet = sheet.lock().unwrap_or_else(PoisonError::into_inner);
    sheet.0.figures(used)
}
