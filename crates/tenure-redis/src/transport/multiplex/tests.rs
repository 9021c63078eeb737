use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::Builder;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use super::*;
use crate::transport::commands::Digits;

const CALLERS: u64 = 200;
const CALLS: u64 = 50;

/// Answers `*1 $n <text>` with the text, in pieces of `piece` bytes, a push in front of each
/// seventh.
async fn server(mut stream: DuplexStream, piece: usize, most: usize) {
    let (mut bytes, mut input, mut answered) = (Vec::new(), vec![0; 4096], 0_usize);
    loop {
        let length = stream.read(&mut input).await.unwrap_or(0);
        if length == 0 {
            return;
        }
        bytes.extend_from_slice(&input[..length]);
        let mut replies = Vec::new();
        loop {
            let ends: Vec<usize> = bytes.windows(2).enumerate().filter(|(_, w)| *w == b"\r\n").map(|(i, _)| i).take(3).collect();
            let [_, second, third] = ends[..] else { break };
            answered += 1;
            if answered % 7 == 0 {
                replies.extend_from_slice(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
            }
            replies.push(b'+');
            replies.extend_from_slice(&bytes[second + 2..third + 2]);
            bytes.drain(..third + 2);
            if answered == most {
                let half = replies.len() - 3;
                let _ = stream.write_all(&replies[..half]).await;
                return;
            }
        }
        for part in replies.chunks(piece) {
            if stream.write_all(part).await.is_err() {
                return;
            }
            if answered % 3 == 0 {
                yield_now().await;
            }
        }
    }
}

async fn all_are_answered(buffer: usize, piece: usize, most: usize) -> u64 {
    let (near, far) = duplex(buffer);
    tokio::spawn(server(far, piece, most));
    let wire = Arc::new(Multiplexed::start(near, Pushes::new("").unwrap()));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let wire = Arc::clone(&wire);
        callers.spawn(async move {
            let mut answered = 0;
            for call in 0..CALLS {
                let mut commands = Commands::new();
                let numbers = 1 + (caller + call) % 5;
                let number = |i| caller * 1_000_000 + call * 10 + i;
                for i in 0..numbers {
                    commands.add(&[Digits::of(number(i)).as_bytes()]);
                }
                let Ok(answers) = wire.send(&commands).await else { return answered };
                let expected: Vec<_> = (0..numbers).map(|i| Value::SimpleString(number(i).to_string())).collect();
                assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), expected);
                answered += 1;
            }
            answered
        });
    }
    let mut answered = 0;
    while let Some(caller) = timeout(Duration::from_secs(20), callers.join_next()).await.expect("a caller was forgotten") {
        answered += caller.unwrap();
    }
    answered
}

fn asks(number: u64) -> Commands {
    Commands::of(&[Digits::of(number).as_bytes()])
}

/// If a caller goes away before its commands are written, they are answered all the same, and
/// no other caller gets the answer.
#[tokio::test]
async fn the_answer_of_a_caller_that_went_away_is_no_others() {
    let (near, far) = duplex(1 << 16);
    tokio::spawn(server(far, 1 << 16, usize::MAX));
    let wire = Multiplexed::start(near, Pushes::new("").unwrap());
    for round in 0..20 {
        let (gone, stays) = (asks(2 * round), asks(2 * round + 1));
        let mut gone = Box::pin(wire.send(&gone));
        // Submitted at its first step.
        assert!(std::future::poll_fn(|cx| Poll::Ready(gone.as_mut().poll(cx))).await.is_pending());
        drop(gone);
        let answer = timeout(Duration::from_secs(20), wire.send(&stays)).await.expect("no answer").unwrap();
        assert_eq!(answer, [Ok(Value::SimpleString((2 * round + 1).to_string()))]);
    }
}

/// Callers whose commands nobody has begun to write fail with the connection as well.
#[tokio::test]
async fn queued_callers_fail_with_the_connection() {
    let (near, far) = duplex(4);
    let wire = Arc::new(Multiplexed::start(near, Pushes::new("").unwrap()));
    let mut callers = JoinSet::new();
    for number in 0..5 {
        let wire = Arc::clone(&wire);
        callers.spawn(async move { wire.send(&asks(number)).await });
        yield_now().await;
        yield_now().await;
    }
    drop(far);
    while let Some(answered) = timeout(Duration::from_secs(20), callers.join_next()).await.expect("one was forgotten") {
        assert!(answered.unwrap().is_err());
    }
}

#[test]
fn each_caller_has_its_own_answers_in_whatever_pieces_they_come() {
    for threads in [0, 2] {
        let runtime = if threads == 0 {
            Builder::new_current_thread().enable_all().build()
        } else {
            Builder::new_multi_thread().worker_threads(threads).enable_all().build()
        };
        let runtime = runtime.unwrap();
        for (buffer, piece) in [(1 << 20, 1 << 20), (1 << 16, 7), (64, 5), (3, 1), (4096, 333)] {
            assert_eq!(runtime.block_on(all_are_answered(buffer, piece, usize::MAX)), CALLERS * CALLS, "{buffer} {piece}");
        }
        for most in [1, 15, 16, 17, 40, 999] {
            assert!(runtime.block_on(all_are_answered(1 << 16, 1 << 16, most)) < most as u64, "{most}");
        }
    }
}
