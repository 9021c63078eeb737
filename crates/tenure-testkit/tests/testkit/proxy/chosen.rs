//! Faults that meet the one command that a test chose.

use std::io::Write;
use std::net::TcpStream;

use super::*;

/// A connection of its own that sends `lines` at once.
fn pipeline(scene: &Scene, lines: &str) -> TcpStream {
    let mut stream = TcpStream::connect(scene.proxy.addr()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(lines.as_bytes()).unwrap();
    stream
}

/// Returns the bytes that come until the connection ends, and how it ends.
fn heard(mut stream: TcpStream) -> (String, Result<(), ErrorKind>) {
    let mut heard = Vec::new();
    let end = std::io::copy(&mut stream, &mut heard).map(drop).map_err(|error| error.kind());
    (String::from_utf8(heard).unwrap(), end)
}

#[test]
fn a_connection_is_cut_at_a_command_and_what_stood_before_it_is_executed() {
    let scene = Scene::new();
    let mut other = scene.connected();
    scene.proxy.cut_at(3);
    let stream = pipeline(&scene, "SET k1 v\r\nSET k2 v\r\nSET k3 v\r\nSET k4 v\r\n");
    assert_eq!(heard(stream).1, Err(ErrorKind::ConnectionReset));
    scene.wait_for_value("k1", "v");
    scene.wait_for_value("k2", "v");
    assert_eq!(other.command(&["EXISTS", "k3", "k4"]).unwrap(), 0, "the other connection lives");
    assert_eq!(scene.proxy.connections(), 1);
    assert_eq!(scene.proxy.commands(), 6, "lost ones are counted");
}

#[test]
fn a_connection_is_cut_in_place_of_a_reply() {
    let scene = Scene::new();
    scene.proxy.cut_after(2);
    let stream = pipeline(&scene, "INCR n\r\nINCR n\r\nINCR n\r\n");
    let (heard, end) = heard(stream);
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    assert_eq!(heard, ":1\r\n");
    scene.wait_for_value("n", "3");
    assert_eq!(scene.connected().command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn what_stands_before_a_cut_may_be_held_and_heal_forgets_it() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.hold_requests();
    scene.proxy.cut_at(2);
    client.send(&["SET", "k", "v"]).unwrap();
    client.send(&["PING"]).unwrap();
    scene.proxy.wait_for_commands(3, SOON);
    assert!(hears_nothing(&mut client));
    scene.proxy.heal();
    assert!(was_reset(client.receive()));
    assert!(scene.value("k").is_nil());
}

#[test]
fn what_was_forwarded_before_a_reset_is_executed_to_the_last() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.server.stop();
    scene.proxy.cut_at(10);
    // So long that the server has replied to some, in vain, when it comes to the last.
    let long = "x".repeat(1 << 16);
    for _ in 0..8 {
        client.send(&["ECHO", &long]).unwrap();
    }
    client.send(&["SET", "last", "1"]).unwrap();
    client.send(&["PING"]).unwrap();
    assert!(was_reset(client.receive()));
    scene.server.cont();
    scene.wait_for_value("last", "1");
}

#[test]
fn one_request_is_held_for_a_time_and_others_queue_behind_it() {
    let scene = Scene::new();
    let (mut one, mut two) = (scene.connected(), scene.connected());
    scene.proxy.hold_request(2, Duration::from_secs(3600));
    for _ in 0..3 {
        one.send(&["RPUSH", "order", "one"]).unwrap();
    }
    scene.proxy.wait_for_commands(5, SOON);
    assert_eq!(one.receive().unwrap(), 1);
    assert_eq!(two.command(&["RPUSH", "order", "two"]).unwrap(), 2);
    assert!(hears_nothing(&mut one));
    scene.proxy.heal();
    assert_eq!([one.receive().unwrap(), one.receive().unwrap()], [Reply::Int(3), Reply::Int(4)]);
    let (start, time) = (Instant::now(), Duration::from_millis(300));
    scene.proxy.hold_request(1, time);
    assert_eq!(one.command(&["PING"]).unwrap(), "PONG");
    assert!(start.elapsed() >= time);
}

#[test]
fn heal_lets_a_request_go_that_is_held_for_a_time() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.hold_request(1, Duration::from_secs(3600));
    client.send(&["PING"]).unwrap();
    assert!(hears_nothing(&mut client));
    scene.proxy.release_requests();
    assert!(hears_nothing(&mut client), "its time is not over");
    scene.proxy.heal();
    assert_eq!(client.receive().unwrap(), "PONG");
}
