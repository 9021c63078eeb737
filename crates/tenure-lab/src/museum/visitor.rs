//! A process that plays a client: it sends what an order says, and reports the reply.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tenure_testkit::register::{Asked, Visitor};

use super::link::{Link, Memcached, Redis, Table};
use super::server::Engine;
use super::zookeeper::Session;

/// Where it plays.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Scene {
    pub(super) engine: Engine,
    /// The file of the table.
    pub(super) table: PathBuf,
    /// How long a session lasts, in milliseconds.
    pub(super) lease: i32,
}

impl Scene {
    fn open(&self, to: SocketAddr) -> io::Result<Box<dyn Link>> {
        Ok(match self.engine {
            Engine::Redis => Box::new(Redis::open(to)?),
            Engine::Table => Box::new(Table::open(self.table.clone())),
            Engine::Memcached => Box::new(Memcached::open(to)?),
            Engine::ZooKeeper => Box::new(Session::open(to, self.lease)?),
        })
    }
}

/// An order, a line of JSON each; the answer is a line as well.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Sends commands on a connection, which is opened if there is none.
    Send { link: String, to: SocketAddr, commands: Vec<Vec<String>> },
    /// Reads the replies to them. The answer is the last.
    Hear { link: String },
    /// Writes to the guarded resource.
    Write { register: PathBuf, who: String, fence: Option<u64> },
    /// Drops its connections.
    HangUp,
}

/// The answer where the connection ended first.
pub(super) const NO_REPLY: &str = "no reply";

/// Plays a client as standard input says, until that ends.
///
/// # Errors
/// When standard input or output breaks, or says what was not expected.
pub fn visit(scene: &str) -> io::Result<()> {
    let scene: Scene = serde_json::from_str(scene)?;
    let mut links: HashMap<String, Box<dyn Link>> = HashMap::new();
    for line in io::stdin().lock().lines() {
        let answer = obey(&scene, &mut links, serde_json::from_str(&line?)?)?;
        writeln!(io::stdout(), "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

fn obey(scene: &Scene, links: &mut HashMap<String, Box<dyn Link>>, order: Order) -> io::Result<String> {
    let done = || "done".to_owned();
    Ok(match order {
        Order::Send { link, to, commands } => {
            if !links.contains_key(&link) {
                links.insert(link.clone(), scene.open(to)?);
            }
            links.get_mut(&link).map_or(Ok(()), |link| link.send(&commands)).map(|()| done())?
        }
        Order::Hear { link } => {
            let heard = links.get_mut(&link).expect("it has sent").receive();
            heard.unwrap_or_else(|_| {
                links.remove(&link);
                NO_REPLY.to_owned()
            })
        }
        Order::Write { register, who, fence } => {
            let mut visitor = Visitor::new(&register, who, 1, fence);
            // A visitor whose read is refused does not write.
            let wrote = visitor.ask(Asked::Read).and_then(|read| visitor.ask(Asked::Write { read, wrote: read + 1 }));
            if wrote.is_some() { "let in".to_owned() } else { "refused".to_owned() }
        }
        Order::HangUp => {
            links.clear();
            done()
        }
    })
}
