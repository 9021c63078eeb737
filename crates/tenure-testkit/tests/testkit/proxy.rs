//! Every fault of the proxy, proved on a real server.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tenure_testkit::{Client, Proxy, RedisServer, Reply, free_port, wait_until};

mod chosen;
mod flow;
mod pace;

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

    fn value(&self, key: &str) -> Reply {
        self.server.command(&["GET", key])
    }

    fn wait_for_value(&self, key: &str, value: &str) {
        wait_until(SOON, "the command to be executed", || self.value(key) == value);
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
    assert_eq!(scene.proxy.commands(), 102);
    assert_eq!(scene.proxy.log()[..3], ["SET", "GET", "INCR"]);
    assert_eq!(scene.proxy.connections(), 1);
    drop(client);
    wait_until(SOON, "the connection to end", || scene.proxy.connections() == 0);
}

#[test]
fn a_black_hole_swallows_both_ways_and_heals_in_order() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.black_hole();
    client.send(&["RPUSH", "l", "1"]).unwrap();
    client.send(&["RPUSH", "l", "2"]).unwrap();
    assert!(hears_nothing(&mut client));
    let mut fresh = scene.client();
    fresh.send(&["PING"]).unwrap();
    assert!(hears_nothing(&mut fresh), "new connections are made and lead nowhere");
    assert_eq!(scene.server.cli("EXISTS l"), "0");
    let clients = scene.server.cli("CLIENT LIST");
    assert_eq!(clients.matches(" addr=127.0.0.1:").count(), 1, "the first client alone came through: {clients}");
    scene.proxy.heal();
    assert_eq!(client.receive().unwrap(), 1);
    assert_eq!(client.receive().unwrap(), 2);
    assert_eq!(fresh.receive().unwrap(), "PONG");
    assert_eq!(scene.server.cli("LRANGE l 0 -1"), "1\n2");
}

#[test]
fn a_black_hole_holds_replies_that_were_under_way() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.server.stop();
    client.send(&["SET", "k", "v"]).unwrap();
    scene.proxy.wait_for_commands(2, SOON);
    scene.proxy.hold_replies();
    scene.server.cont();
    scene.wait_for_value("k", "v");
    scene.proxy.black_hole();
    assert!(hears_nothing(&mut client));
    scene.proxy.heal();
    assert_eq!(client.receive().unwrap(), "OK");
}

#[test]
fn what_a_dead_client_sent_into_the_black_hole_is_executed_late() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.black_hole();
    client.send(&["SET", "late", "1"]).unwrap();
    drop(client);
    scene.proxy.heal();
    scene.wait_for_value("late", "1");
}

#[test]
fn cut_resets_every_connection_and_only_those_there_are() {
    let scene = Scene::new();
    let mut clients = [scene.connected(), scene.connected()];
    scene.proxy.cut();
    assert_eq!(scene.proxy.connections(), 0);
    for client in &mut clients {
        assert!(was_reset(client.receive()));
    }
    assert_eq!(scene.connected().command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn cut_forgets_what_was_held() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.hold_requests();
    client.send(&["SET", "k", "v"]).unwrap();
    scene.proxy.wait_for_commands(2, SOON);
    scene.proxy.cut();
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
    scene.proxy.refuse();
    scene.proxy.heal();
    scene.connected();
}

#[test]
fn delay_is_paid_each_way_and_pipelines_pay_it_once() {
    let scene = Scene::new();
    let mut client = scene.client();
    client.command(&["PING"]).unwrap();
    let delay = Duration::from_millis(200);
    scene.proxy.delay(delay);
    let start = Instant::now();
    for n in 0..20 {
        client.send(&["ECHO", &n.to_string()]).unwrap();
    }
    for n in 0..20 {
        assert_eq!(client.receive().unwrap(), n.to_string().as_str());
    }
    let took = start.elapsed();
    assert!(took >= 2 * delay, "{took:?}");
    assert!(took < 20 * delay, "took {took:?}");
    scene.proxy.heal();
    let start = Instant::now();
    client.command(&["PING"]).unwrap();
    let took = start.elapsed();
    assert!(took < delay, "took {took:?}");
}

#[test]
fn a_swallowed_reply_was_executed_and_leaves_a_half_dead_connection() {
    let scene = Scene::new();
    let (mut one, mut two) = (scene.connected(), scene.connected());
    scene.proxy.swallow_reply(3);
    for n in 1..=4 {
        one.send(&["INCR", &format!("k{n}")]).unwrap();
    }
    assert_eq!(one.receive().unwrap(), 1);
    assert_eq!(one.receive().unwrap(), 1);
    assert!(hears_nothing(&mut one), "the third reply is lost");
    scene.wait_for_value("k3", "1");
    scene.wait_for_value("k4", "1");
    assert_eq!(two.command(&["PING"]).unwrap(), "PONG", "the other connection lives");
    one.send(&["SET", "k5", "1"]).unwrap();
    scene.wait_for_value("k5", "1");
    scene.proxy.heal();
    assert_eq!(scene.proxy.connections(), 1);
    assert!(was_reset(one.receive()));
    assert_eq!(two.command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn a_half_dead_connection_does_not_even_hear_the_server_die() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.swallow_reply(1);
    client.send(&["SET", "k", "v"]).unwrap();
    scene.wait_for_value("k", "v");
    assert!(hears_nothing(&mut client));
    scene.server.kill();
    assert!(hears_nothing(&mut client));
}

#[test]
fn the_swallowed_command_is_counted_over_all_connections() {
    let scene = Scene::new();
    let (mut one, mut two) = (scene.connected(), scene.connected());
    scene.proxy.swallow_reply(2);
    assert_eq!(one.command(&["INCR", "n"]).unwrap(), 1);
    two.send(&["INCR", "n"]).unwrap();
    assert!(hears_nothing(&mut two));
    assert_eq!(one.command(&["INCR", "n"]).unwrap(), 3);
    scene.proxy.cut();
    assert!(was_reset(two.receive()));
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
    assert_eq!(scene.connected().command(&["KEYS", "*"]).unwrap(), Reply::Array(vec![Reply::Bytes(b"k1".to_vec())]));
}

#[test]
fn faults_that_have_not_happened_are_forgotten_by_heal() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.swallow_reply(1);
    scene.proxy.drop_request(2);
    scene.proxy.heal();
    assert_eq!(client.command(&["PING"]).unwrap(), "PONG");
    assert_eq!(client.command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn held_requests_of_a_dead_client_are_executed_late() {
    let scene = Scene::new();
    let mut client = scene.connected();
    let mut subscriber = scene.connected();
    assert!(matches!(subscriber.command(&["SUBSCRIBE", "c"]).unwrap(), Reply::Array(_)));
    scene.proxy.hold_requests();
    client.send(&["SET", "late", "1"]).unwrap();
    client.send(&["INCR", "late"]).unwrap();
    scene.proxy.wait_for_commands(5, SOON);
    drop(client);
    assert!(scene.value("late").is_nil());
    scene.server.cli("PUBLISH c m");
    assert!(matches!(subscriber.receive().unwrap(), Reply::Array(_)), "pushes still flow");
    scene.proxy.heal();
    scene.wait_for_value("late", "2");
    wait_until(SOON, "the dead client's connection to end", || scene.proxy.connections() == 1);
}

#[test]
fn a_dead_client_s_requests_are_executed_to_the_last_although_nobody_takes_the_replies() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.hold_requests();
    let long = "x".repeat(1 << 20);
    for _ in 0..32 {
        client.send(&["ECHO", &long]).unwrap();
    }
    client.send(&["SET", "last", "1"]).unwrap();
    scene.proxy.wait_for_commands(34, SOON);
    drop(client);
    scene.proxy.heal();
    scene.wait_for_value("last", "1");
}

#[test]
fn held_replies_come_with_heal() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.proxy.hold_replies();
    client.send(&["INCR", "n"]).unwrap();
    client.send(&["INCR", "n"]).unwrap();
    scene.wait_for_value("n", "2");
    assert!(hears_nothing(&mut client));
    scene.proxy.heal();
    assert_eq!(client.receive().unwrap(), 1);
    assert_eq!(client.receive().unwrap(), 2);
}

#[test]
fn pushes_do_not_shift_the_swallowed_reply() {
    let scene = Scene::new();
    let mut client = scene.connected();
    client.command(&["SUBSCRIBE", "a", "b"]).unwrap();
    client.receive().unwrap();
    scene.server.cli("PUBLISH a 1");
    client.receive().unwrap();
    scene.proxy.swallow_reply(2);
    assert!(matches!(client.command(&["PING"]).unwrap(), Reply::Array(_)));
    client.send(&["PING"]).unwrap();
    assert!(hears_nothing(&mut client));
}

#[test]
fn a_server_that_is_down_resets_and_one_that_dies_ends_the_connection() {
    let scene = Scene::new();
    let mut client = scene.connected();
    scene.server.kill();
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    let early = Client::connect(scene.proxy.addr(), SOON).and_then(|mut client| client.command(&["PING"]));
    assert!(was_reset(early));
    scene.server.restart();
    scene.connected();
}

#[test]
fn dropping_the_proxy_ends_its_connections() {
    let scene = Scene::new();
    let mut client = scene.connected();
    drop(scene.proxy);
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
#[should_panic(expected = r#"the proxy saw 1 of 2 commands within 50ms: ["PING"]"#)]
fn waiting_in_vain_tells_what_was_seen() {
    let scene = Scene::new();
    scene.connected();
    scene.proxy.wait_for_commands(2, Duration::from_millis(50));
}

#[tokio::test]
async fn a_task_on_any_runtime_can_wait_for_commands() {
    let scene = Scene::new();
    let mut client = scene.client();
    let sender = std::thread::spawn(move || client.command(&["PING"]).unwrap());
    tokio::time::timeout(SOON, scene.proxy.reached(1)).await.unwrap();
    assert_eq!(sender.join().unwrap(), "PONG");
}

#[test]
fn other_protocols_pass_unparsed() {
    fn echo(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(addr).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = std::io::copy(&mut &stream, &mut &stream);
        }
    });
    // A piece that cannot be a command of Redis counts as one of another protocol. Half a command of Redis does not count.
    for (proxy, counted) in [(Proxy::start(upstream), 1), (Proxy::start_opaque(upstream), 2)] {
        for bytes in [&b"\x16\x03*1\r\nhello"[..], b"*1\r\n$4\r\nPI"] {
            assert_eq!(echo(proxy.addr(), bytes), bytes);
        }
        assert_eq!(proxy.commands(), counted);
    }
}

#[test]
fn a_link_waits_for_a_server_that_does_not_listen_yet() {
    use std::io::{Read, Write};
    let port = free_port();
    let link = Proxy::start_link(([127, 0, 0, 1], port).into());
    let mut early = std::net::TcpStream::connect(link.addr()).unwrap();
    early.write_all(b"early").unwrap();
    early.set_read_timeout(Some(SILENCE)).unwrap();
    let error = early.read(&mut [0]).expect_err("the connection has ended");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    let (mut stream, _) = TcpListener::bind(("127.0.0.1", port)).unwrap().accept().unwrap();
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"early");
}
