//! Traffic that is held, let go, and counted.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

#[test]
fn released_requests_are_executed_while_replies_stay_held() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.hold_requests();
    scene.proxy.hold_replies();
    client.send(&["INCR", "n"]).unwrap();
    scene.proxy.wait_for_commands(2, SOON);
    assert!(scene.value("n").is_nil());
    scene.proxy.release_requests();
    scene.wait_for_value("n", "1");
    client.send(&["INCR", "n"]).unwrap();
    scene.wait_for_value("n", "2");
    assert!(hears_nothing(&mut client));
    scene.proxy.release_replies();
    assert_eq!([client.receive().unwrap(), client.receive().unwrap()], [Reply::Int(1), Reply::Int(2)]);
}

#[test]
fn released_replies_flow_while_requests_stay_held() {
    let scene = Scene::new();
    let (mut one, mut two) = (scene.connected(), scene.connected());
    scene.proxy.hold_replies();
    one.send(&["INCR", "n"]).unwrap();
    scene.proxy.wait_for_replies(3, SOON);
    scene.proxy.hold_requests();
    two.send(&["INCR", "n"]).unwrap();
    scene.proxy.wait_for_commands(4, SOON);
    scene.proxy.release_replies();
    assert_eq!(one.receive().unwrap(), 1);
    assert!(hears_nothing(&mut two));
    assert_eq!(scene.value("n"), "1");
    scene.proxy.release_requests();
    assert_eq!(two.receive().unwrap(), 2);
}

#[test]
fn the_requests_of_present_connections_are_released_too() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.hold_present_requests();
    client.send(&["SET", "late", "1"]).unwrap();
    scene.proxy.wait_for_commands(2, SOON);
    scene.connected();
    assert!(scene.value("late").is_nil());
    scene.proxy.release_requests();
    assert_eq!(client.receive().unwrap(), "OK");
}

#[test]
fn a_held_server_does_not_hear_its_client_close() {
    let scene = Scene::new();
    let client = scene.connected();
    scene.proxy.hold_requests();
    drop(client);
    std::thread::sleep(SILENCE);
    assert_eq!(clients_of(&scene), 1, "the server still has the connection");
    scene.proxy.release_requests();
    wait_until(SOON, "the server to hear it", || clients_of(&scene) == 0);
}

#[test]
fn a_held_client_does_not_hear_its_server_die() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.hold_replies();
    scene.server.kill();
    assert!(hears_nothing(&mut client));
    scene.proxy.release_replies();
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn replies_are_counted_where_the_client_hears_none() {
    let scene = Scene::new();
    let mut client = scene.connected();
    assert_eq!(scene.proxy.replies(), 1);
    scene.proxy.swallow_reply(2);
    for _ in 0..3 {
        client.send(&["INCR", "n"]).unwrap();
    }
    scene.proxy.wait_for_replies(4, SOON);
    assert_eq!(scene.value("n"), "3");
    assert_eq!(scene.proxy.replies(), 4);
}

#[test]
fn confirmations_count_and_pushes_do_not() {
    let scene = Scene::new();
    let mut client = scene.client();
    client.command(&["SUBSCRIBE", "a", "b"]).unwrap();
    client.receive().unwrap();
    scene.server.cli("PUBLISH a 1");
    client.receive().unwrap();
    assert_eq!(scene.proxy.replies(), 2);
}

#[test]
#[should_panic(expected = r#"the proxy saw 1 of 2 replies within 50ms, to ["PING"]"#)]
fn waiting_for_replies_in_vain_tells_what_was_seen() {
    let scene = Scene::new();
    scene.connected();
    scene.proxy.wait_for_replies(2, Duration::from_millis(50));
}

#[tokio::test]
async fn a_task_on_any_runtime_can_wait_for_replies() {
    let scene = Scene::new();
    scene.proxy.hold_replies();
    let mut client = scene.client();
    client.send(&["PING"]).unwrap();
    tokio::time::timeout(SOON, scene.proxy.answered(1)).await.unwrap();
}

/// How many TCP clients the server has.
fn clients_of(scene: &Scene) -> usize {
    // The one who asks comes over the socket, which has no port.
    scene.server.cli("CLIENT LIST").lines().filter(|line| line.contains(" addr=127.0.0.1:")).count()
}

/// Returns the bytes that a RESP3 client receives until `end` has come.
fn hears_to(stream: &mut TcpStream, end: &str) -> String {
    let (mut heard, mut buffer) = (String::new(), [0; 1024]);
    while !heard.ends_with(&format!("{end}\r\n")) {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the connection has ended after {heard:?}");
        heard.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    heard
}

#[test]
fn pushes_are_held_or_lost_and_replies_are_not() {
    let scene = Scene::new();
    let mut stream = TcpStream::connect(scene.proxy.addr()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(b"HELLO 3\r\nSUBSCRIBE channel\r\nECHO ready\r\n").unwrap();
    hears_to(&mut stream, "ready");
    let publish = |message: &str, pushes: u64| {
        assert_eq!(scene.server.cli(&format!("PUBLISH channel {message}")), "1");
        wait_until(SOON, "the push", || scene.proxy.pushes() == pushes);
    };
    scene.proxy.hold_pushes();
    publish("late", 1);
    publish("later", 2);
    stream.write_all(b"ECHO overtakes\r\n").unwrap();
    assert_eq!(hears_to(&mut stream, "overtakes"), "$9\r\novertakes\r\n");
    scene.proxy.release_pushes();
    assert!(hears_to(&mut stream, "later").contains("late\r\n"), "in their order");
    scene.proxy.lose_pushes();
    publish("lost", 3);
    scene.proxy.heal();
    publish("last", 4);
    stream.write_all(b"ECHO end\r\n").unwrap();
    let heard = hears_to(&mut stream, "end");
    assert!(heard.contains("last") && !heard.contains("lost"), "{heard:?}");
    assert_eq!(scene.proxy.connections(), 1, "nothing of it is a reason to reset the connection");
}
