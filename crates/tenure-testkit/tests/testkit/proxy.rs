//! Every fault of the proxy is done to a real server: one that is not would let any product pass.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tenure_testkit::{Client, Proxy, RedisServer, Reply, wait_until};

const SOON: Duration = Duration::from_secs(10);
/// How long a test listens to be sure that nothing comes.
const SILENCE: Duration = Duration::from_millis(100);

struct Scene {
    server: RedisServer,
    proxy: Proxy,
}

impl Scene {
    fn new() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.addr());
        Self { server, proxy }
    }

    fn client(&self) -> Client {
        Client::connect(self.proxy.addr(), SOON).unwrap()
    }

    /// A client that is connected through to the server.
    fn connected(&self) -> Client {
        let mut client = self.client();
        assert_eq!(client.command(&["PING"]).unwrap(), "PONG");
        client
    }

    /// A connection of its own that sends `lines` at once.
    fn pipeline(&self, lines: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.proxy.addr()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(lines.as_bytes()).unwrap();
        stream
    }

    fn value(&self, key: &str) -> Reply {
        self.server.command(&["GET", key])
    }

    fn wait_for_value(&self, key: &str, value: &str) {
        wait_until(SOON, "the command to be executed", || self.value(key) == value);
    }

    /// How many TCP clients the server has. The one who asks comes over the socket, which has no port.
    fn clients(&self) -> usize {
        self.server.cli("CLIENT LIST").matches(" addr=127.0.0.1:").count()
    }
}

/// Whether nothing comes for a while.
fn hears_nothing(client: &mut Client) -> bool {
    client.set_timeout(SILENCE).unwrap();
    let silent = matches!(client.receive().map_err(|error| error.kind()), Err(ErrorKind::WouldBlock | ErrorKind::TimedOut));
    client.set_timeout(SOON).unwrap();
    silent
}

fn was_reset<T: std::fmt::Debug>(result: std::io::Result<T>) -> bool {
    matches!(result.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset))
}

#[test]
fn healthy_it_is_transparent_and_counts() {
    let scene = Scene::new();
    let mut client = scene.client();
    let big = "x".repeat(1 << 20);
    assert_eq!(client.command(&["SET", "k", &big]).unwrap(), "OK");
    assert_eq!(client.command(&["GET", "k"]).unwrap(), big.as_str());
    for _ in 0..100 {
        client.send(&["incr", "n"]).unwrap();
    }
    for n in 1..=100 {
        assert_eq!(client.receive().unwrap(), n);
    }
    assert_eq!((scene.proxy.commands(), scene.proxy.replies()), (102, 102));
    assert_eq!(scene.proxy.log()[..3], ["SET", "GET", "INCR"]);
    assert_eq!(scene.proxy.connections(), 1);
    drop(client);
    wait_until(SOON, "the connection to end", || scene.proxy.connections() == 0);
}

#[test]
fn a_black_hole_swallows_both_ways_and_heals_in_order() {
    let scene = Scene::new();
    let (mut client, mut dead) = (scene.connected(), scene.connected());
    scene.proxy.black_hole();
    client.send(&["RPUSH", "l", "1"]).unwrap();
    client.send(&["RPUSH", "l", "2"]).unwrap();
    dead.send(&["SET", "late", "1"]).unwrap();
    drop(dead);
    assert!(hears_nothing(&mut client));
    let mut fresh = scene.client();
    fresh.send(&["PING"]).unwrap();
    assert!(hears_nothing(&mut fresh), "new connections are made and lead nowhere");
    assert_eq!((scene.server.cli("EXISTS l late"), scene.clients()), ("0".to_owned(), 2));
    scene.proxy.heal();
    assert_eq!([client.receive().unwrap(), client.receive().unwrap()], [Reply::Int(1), Reply::Int(2)]);
    assert_eq!(fresh.receive().unwrap(), "PONG");
    assert_eq!(scene.server.cli("LRANGE l 0 -1"), "1\n2");
    scene.wait_for_value("late", "1");
}

#[test]
fn a_cut_resets_every_connection_and_forgets_what_was_held() {
    let scene = Scene::new();
    let mut clients = [scene.connected(), scene.connected()];
    scene.proxy.hold_requests();
    clients[0].send(&["SET", "k", "v"]).unwrap();
    scene.proxy.wait_for_commands(3, SOON);
    scene.proxy.cut();
    assert_eq!(scene.proxy.connections(), 0);
    assert!(clients.iter_mut().all(|client| was_reset(client.receive())));
    scene.proxy.heal();
    assert_eq!(scene.connected().command(&["GET", "k"]).unwrap(), Reply::Nil);
}

#[test]
fn refused_connections_are_refused_and_present_ones_go_on() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.refuse();
    let refused = Client::connect(scene.proxy.addr(), SOON).map_err(|error| error.kind());
    assert_eq!(refused.unwrap_err(), ErrorKind::ConnectionRefused);
    assert_eq!(client.command(&["PING"]).unwrap(), "PONG");
    scene.proxy.accept();
    scene.connected();
}

#[test]
fn a_swallowed_reply_was_executed_and_leaves_a_half_dead_connection() {
    let scene = Scene::new();
    let (mut one, mut two) = (scene.connected(), scene.connected());
    scene.proxy.swallow_reply(4);
    assert_eq!(two.command(&["PING"]).unwrap(), "PONG", "it counts");
    for n in 1..=4 {
        one.send(&["INCR", &format!("k{n}")]).unwrap();
    }
    assert_eq!([one.receive().unwrap(), one.receive().unwrap()], [Reply::Int(1), Reply::Int(1)]);
    assert!(hears_nothing(&mut one), "the third reply is lost");
    scene.proxy.wait_for_replies(7, SOON);
    assert_eq!((scene.value("k3"), scene.value("k4")), (scene.value("k1"), scene.value("k2")));
    assert_eq!(two.command(&["PING"]).unwrap(), "PONG", "the other connection lives");
    scene.proxy.heal();
    assert_eq!(scene.proxy.connections(), 1);
    assert!(was_reset(one.receive()));
}

#[test]
fn a_dropped_request_is_never_executed_nor_what_follows_it() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.drop_request(2);
    for key in ["k1", "k2", "k3"] {
        client.send(&["SET", key, "v"]).unwrap();
    }
    assert_eq!(client.receive().unwrap(), "OK");
    assert!(hears_nothing(&mut client));
    scene.proxy.wait_for_commands(4, SOON);
    scene.proxy.heal();
    assert!(was_reset(client.receive()));
    assert_eq!(scene.server.cli("KEYS *"), "k1");
}

#[test]
fn a_connection_is_cut_at_a_command_or_in_place_of_its_reply() {
    let scene = Scene::new();
    let mut other = scene.connected();
    scene.proxy.cut_at(3);
    let mut stream = scene.pipeline("SET k1 v\r\nSET k2 v\r\nSET k3 v\r\nSET k4 v\r\n");
    assert!(was_reset(stream.read_to_end(&mut Vec::new())));
    scene.wait_for_value("k1", "v");
    scene.wait_for_value("k2", "v");
    assert_eq!(other.command(&["EXISTS", "k3", "k4"]).unwrap(), 0, "the other connection lives");
    assert_eq!((scene.proxy.connections(), scene.proxy.commands()), (1, 6), "lost ones are counted");
    scene.proxy.cut_after(2);
    let (mut stream, mut heard) = (scene.pipeline("INCR n\r\nINCR n\r\nINCR n\r\n"), Vec::new());
    assert!(was_reset(stream.read_to_end(&mut heard)));
    assert_eq!(heard, b":1\r\n");
    scene.wait_for_value("n", "3");
}

#[test]
fn held_requests_of_a_dead_client_are_executed_late_to_the_last() {
    let scene = Scene::new();
    let (mut client, mut subscriber) = (scene.connected(), scene.connected());
    assert!(matches!(subscriber.command(&["SUBSCRIBE", "c"]).unwrap(), Reply::Array(_)));
    scene.proxy.hold_requests();
    // Nobody takes the replies.
    let long = "x".repeat(1 << 20);
    for _ in 0..32 {
        client.send(&["ECHO", &long]).unwrap();
    }
    client.send(&["SET", "late", "1"]).unwrap();
    scene.proxy.wait_for_commands(36, SOON);
    drop(client);
    std::thread::sleep(SILENCE);
    assert_eq!((scene.clients(), scene.value("late")), (2, Reply::Nil), "the server heard of the end");
    scene.server.cli("PUBLISH c m");
    assert!(matches!(subscriber.receive().unwrap(), Reply::Array(_)), "pushes still flow");
    scene.proxy.release_requests();
    scene.wait_for_value("late", "1");
    wait_until(SOON, "the dead client's connection to end", || scene.clients() == 1);
}

#[test]
fn the_requests_of_present_connections_alone_are_held() {
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
fn replies_are_held_while_requests_flow_and_so_is_the_end_of_the_server() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.hold_requests();
    scene.proxy.hold_replies();
    client.send(&["INCR", "n"]).unwrap();
    scene.proxy.wait_for_commands(2, SOON);
    assert!(scene.value("n").is_nil());
    scene.proxy.release_requests();
    client.send(&["INCR", "n"]).unwrap();
    scene.wait_for_value("n", "2");
    scene.server.kill();
    assert!(hears_nothing(&mut client));
    scene.proxy.release_replies();
    assert_eq!([client.receive().unwrap(), client.receive().unwrap()], [Reply::Int(1), Reply::Int(2)]);
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

/// Returns what a RESP3 client receives until `end` has come.
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
    let mut stream = scene.pipeline("HELLO 3\r\nSUBSCRIBE channel\r\nECHO ready\r\n");
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

/// A delay and a throttle are paid each way, by each connection alone, and not after a heal.
#[test]
fn a_slow_network_is_slow() {
    let scene = Scene::new();
    let mut clients = [(); 4].map(|()| scene.connected());
    let text = "x".repeat(1_000);
    let took = |clients: &mut [Client]| {
        let start = Instant::now();
        for client in clients.iter_mut() {
            client.send(&["ECHO", &text]).unwrap();
        }
        for client in clients.iter_mut() {
            assert_eq!(client.receive().unwrap(), text.as_str());
        }
        start.elapsed()
    };
    let faults: [fn(&Proxy); 2] = [|proxy| proxy.delay(Duration::from_millis(250)), |proxy| proxy.throttle(4_000)];
    for fault in faults {
        fault(&scene.proxy);
        let slow = took(&mut clients);
        // A quarter of a second each way, less the first tick of each.
        assert!((450..1_500).contains(&slow.as_millis()), "{slow:?}");
        scene.proxy.heal();
        let healed = took(&mut clients[..1]);
        assert!(healed < Duration::from_millis(200), "{healed:?}");
    }
}

#[test]
fn frames_arrive_in_slices_and_whole_again_after_heal() {
    let scene = Scene::new();
    let pieces = |length: usize| {
        let mut stream = scene.pipeline(&format!("ECHO {}\r\n", "x".repeat(length)));
        let whole = format!("${length}\r\n").len() + length + 2;
        let (mut pieces, mut read, mut buffer) = (0, 0, vec![0; 1 << 20]);
        while read < whole {
            read += stream.read(&mut buffer).unwrap();
            pieces += 1;
        }
        pieces
    };
    scene.proxy.slice(1);
    // A reader that is slow sees several slices as one piece, but hardly all of them.
    assert!((0..10).any(|_| pieces(20_000) > 10));
    scene.proxy.heal();
    assert!(pieces(1_000) < 10);
}

#[test]
fn churn_resets_again_and_again_until_heal() {
    let scene = Scene::new();
    scene.proxy.churn(Duration::from_millis(50));
    for _ in 0..3 {
        assert!(was_reset(scene.client().receive()));
    }
    assert_eq!(scene.proxy.accepted(), 3);
    scene.proxy.heal();
    let mut client = scene.connected();
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(client.command(&["PING"]).unwrap(), "PONG");
}
