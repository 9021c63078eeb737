//! Rounds of a task of a quorum: it takes one name, works under it, and gives it up.

use std::io;
use std::time::Duration;

use tenure::Owner;

use super::names::{FEW, MANY, SEVERAL, numbered};
use super::{Cut, Task, now};

/// The ttl where many names are taken: a server that has lost its data stays out for as long.
const SHORT: Duration = Duration::from_secs(1);
/// That of names which are contended: long enough for a renewal on a busy machine.
const LONG: Duration = Duration::from_secs(3);

impl Task {
    pub(in crate::soak) fn one_of_several(&mut self) -> String {
        numbered(&self.prefix, self.rng.u32(0..SEVERAL))
    }

    /// Takes a name and gives it up at once.
    pub(super) async fn take_one_of_many(&mut self) -> io::Result<()> {
        let asked = now();
        let name = numbered(&self.prefix, self.rng.u32(0..MANY));
        let acquire = self.locker.mutex(name).ttl(SHORT);
        let cut = if self.rng.u8(0..16) == 0 { self.cut(2) } else { Cut::Never };
        let tried = if self.rng.u8(0..16) == 0 {
            let wait = self.millis(50);
            self.unless_cut(cut, async { acquire.wait(wait).acquire().await.map(Some) }).await
        } else {
            self.unless_cut(cut, acquire.try_acquire()).await
        };
        let Some(guard) = self.heard(tried).flatten() else { return Ok(()) };
        let Some(held) = self.enter(guard, asked).await? else { return Ok(()) };
        if self.rng.u8(..) == 0 {
            self.look(&held).await?;
        }
        self.leave(held).await
    }

    /// Tries to take a name, or waits for it with a limit or without, and holds it for a while.
    pub(super) async fn contend(&mut self) -> io::Result<()> {
        let asked = now();
        let name = numbered(&self.prefix, self.rng.u32(0..FEW));
        let acquire = self.locker.mutex(name).ttl(LONG);
        let cut = if self.rng.u8(0..16) == 0 { self.cut(50) } else { Cut::Never };
        let how = self.rng.u8(0..3);
        let acquire = match self.rng.u8(0..8) {
            0 => acquire.token(Owner::from_bytes(format!("a caller's {:016x}", self.rng.u64(..)).into_bytes())),
            _ => acquire,
        };
        self.tally.waits += u64::from(how > 0);
        let guard = match how {
            0 => {
                let tried = self.unless_cut(cut, acquire.try_acquire()).await;
                self.tally.busy += u64::from(matches!(tried, Some(Ok(None))));
                self.heard(tried).flatten()
            }
            1 => {
                let wait = self.millis(3_000);
                let waited = self.unless_cut(cut, acquire.wait(wait).acquire()).await;
                self.heard(waited)
            }
            _ => self.patiently(cut, acquire.acquire()).await,
        };
        let Some(guard) = guard else {
            self.pause(50).await;
            return Ok(());
        };
        let Some(mut held) = self.enter(guard, asked).await? else { return Ok(()) };
        if self.rng.u8(0..8) == 0 {
            self.stay(&mut held).await?;
        } else {
            self.pause(40).await;
        }
        self.look(&held).await?;
        if held.guard.token().is_generated() && self.rng.u8(0..8) == 0 {
            return self.hand_on(held).await;
        }
        self.leave(held).await
    }
}
