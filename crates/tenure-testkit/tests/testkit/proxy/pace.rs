//! Slow and restless networks.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

/// The sizes in which the reply to `ECHO` of `length` bytes arrives.
fn pieces(scene: &Scene, length: usize) -> Vec<usize> {
    let mut stream = TcpStream::connect(scene.proxy.addr()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "ECHO {}\r\n", "x".repeat(length)).unwrap();
    let whole = format!("${length}\r\n").len() + length + 2;
    let mut pieces = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    while pieces.iter().sum::<usize>() < whole {
        pieces.push(stream.read(&mut buffer).unwrap());
    }
    pieces
}

#[test]
fn frames_arrive_in_slices_and_whole_again_after_heal() {
    let scene = Scene::new();
    scene.proxy.slice(1);
    // A reader that is slow sees several slices as one piece, but hardly all of them.
    assert!((0..10).any(|_| pieces(&scene, 20_000).len() > 10));
    let mut client = scene.connected();
    assert_eq!(client.command(&["SET", "k", "v"]).unwrap(), "OK");
    scene.proxy.heal();
    assert!(pieces(&scene, 1_000).len() < 10);
}

#[test]
fn a_throttle_is_paid_each_way_and_for_each_connection_alone() {
    let scene = Scene::new();
    let mut clients = [scene.connected(), scene.connected(), scene.connected(), scene.connected()];
    scene.proxy.throttle(4_000);
    let text = "x".repeat(1_000);
    let start = Instant::now();
    for client in &mut clients {
        client.send(&["ECHO", &text]).unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.receive().unwrap(), text.as_str());
    }
    let took = start.elapsed();
    // A quarter of a second each way, less the first tick of each.
    assert!(took >= Duration::from_millis(450), "{took:?}");
    assert!(took < Duration::from_millis(1_500), "took {took:?}");
    scene.proxy.heal();
    let start = Instant::now();
    clients[0].command(&["ECHO", &text]).unwrap();
    assert!(start.elapsed() < Duration::from_millis(200), "took {:?}", start.elapsed());
}

#[test]
fn a_throttle_keeps_its_rate_in_small_pieces() {
    let scene = Scene::new();
    let mut client = scene.connected();
    let text = "x".repeat(2_000);
    for bytes in [1, 2, 7] {
        scene.proxy.slice(bytes);
        scene.proxy.throttle(10_000);
        let start = Instant::now();
        assert_eq!(client.command(&["ECHO", &text]).unwrap(), text.as_str());
        let took = start.elapsed();
        // A fifth of a second each way.
        assert!(took >= Duration::from_millis(380), "{bytes} at once: {took:?}");
        assert!(took < Duration::from_millis(700), "{bytes} at once took {took:?}");
        scene.proxy.heal();
    }
}

#[test]
fn heal_ends_a_throttle_for_what_is_on_its_way() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.throttle(1);
    client.send(&["SET", "k", "v"]).unwrap();
    scene.proxy.wait_for_commands(2, SOON);
    scene.proxy.heal();
    assert_eq!(client.receive().unwrap(), "OK");
}

#[test]
fn churn_resets_again_and_again_until_heal() {
    let scene = Scene::new();
    scene.proxy.churn(Duration::from_millis(50));
    for _ in 0..3 {
        let mut client = scene.client();
        assert!(matches!(client.receive(), Err(error) if error.kind() == ErrorKind::ConnectionReset));
    }
    assert_eq!(scene.proxy.accepted(), 3);
    scene.proxy.heal();
    let mut client = scene.connected();
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(client.command(&["PING"]).unwrap(), "PONG");
}
