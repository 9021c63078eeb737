//! The visitor's side of the place that the locks of a soak guard.

use std::io;
use std::path::Path;

use tenure::{BootTime, Guard};
use tenure_testkit::history::{At, nanos};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::referee::{Entrance, Says, Told};

/// One task's way to the place.
#[derive(Debug)]
pub(super) struct Visitor(BufReader<UnixStream>);

impl Visitor {
    pub(super) async fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self(BufReader::new(UnixStream::connect(path).await?)))
    }

    pub(super) async fn enters(&mut self, entrance: Entrance) -> io::Result<Told> {
        self.say(&Says::Enters(entrance)).await
    }

    /// Reports the end of the guard's validity as of now.
    pub(super) async fn stays(&mut self, told: Told, guard: &Guard) -> io::Result<()> {
        self.say(&Says::Stays { visit: told.visit, until: until(guard) }).await.map(drop)
    }

    /// Leaves, with what it made of what it read.
    pub(super) async fn leaves(&mut self, told: Told, guard: &Guard) -> io::Result<()> {
        self.say(&Says::Leaves { visit: told.visit, until: until(guard), wrote: told.number + 1 }).await.map(drop)
    }

    async fn say(&mut self, says: &Says) -> io::Result<Told> {
        let line = serde_json::to_string(says)? + "\n";
        self.0.get_mut().write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        self.0.read_line(&mut answer).await?;
        Ok(serde_json::from_str(&answer)?)
    }
}

/// Returns the end of a guard's validity without a renewal; never later than the guard says itself.
pub(super) fn until(guard: &Guard) -> At {
    let now = BootTime::now();
    nanos((now + guard.remaining()).since_boot())
}
