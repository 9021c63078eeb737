//! Compares a quorum with one of its servers, in turn: medians of acquire, with
//! one round and with two, and of release.
//!
//! `cargo run --release --example quorum-cost -- redis://127.0.0.1:7001 quorum+redis://127.0.0.1:7001,...`
//! `./scripts/try quorum` starts such servers.

use std::time::{Duration, Instant};

use tenure::store::{AcquireReply, Request, Store};
use tenure::{Error, Name, Owner, Share};
use tenure_redis::Options;

const TIMES: usize = 200;
const ROUNDS: usize = 20;

#[derive(Default)]
struct Times {
    acquire: Vec<Duration>,
    /// Those of them that took two rounds.
    twice: Vec<Duration>,
    release: Vec<Duration>,
}

impl Times {
    /// Takes and releases names, one after the other.
    async fn measure(
        &mut self,
        store: &dyn Store,
        second_rounds: impl Fn() -> u64,
        name: impl Fn(usize) -> String,
    ) -> Result<(), Error> {
        for n in 0..TIMES {
            let request = Request::new(Name::new(name(n))?, Owner::generate("cost")?, Share::MUTEX, Duration::from_secs(10));
            let (before, began) = (second_rounds(), Instant::now());
            let reply = store.acquire(&request).await?;
            let granted = Instant::now();
            store.release(&request.lease(), Duration::ZERO).await?;
            if let AcquireReply::Granted(_) = reply {
                if second_rounds() > before { &mut self.twice } else { &mut self.acquire }.push(granted - began);
                self.release.push(granted.elapsed());
            }
        }
        Ok(())
    }
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, Duration::as_secs_f64) * 1e6
}

#[tokio::main(flavor = "current_thread")]
#[allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "it is what the program is for")]
async fn main() -> Result<(), Error> {
    let mut urls = std::env::args().skip(1);
    let (Some(one), Some(all)) = (urls.next(), urls.next()) else {
        return Err(Error::invalid("give the URL of one server and that of a quorum"));
    };
    let (one, all) = (Options::parse(&one)?.open().await?, Options::parse(&all)?.quorum().await?);
    let [mut single, mut known, mut new] = [Times::default(), Times::default(), Times::default()];
    for round in 0..ROUNDS {
        single.measure(&one, || 0, |n| format!("one {n}")).await?;
        known.measure(&all, || all.second_rounds(), |_| "all".to_owned()).await?;
        new.measure(&all, || all.second_rounds(), |n| format!("new {round} {n}")).await?;
    }
    let base = (median(&mut single.acquire), median(&mut single.release));
    for (what, times) in
        [("one server", &mut single), ("quorum, a name that is used again", &mut known), ("quorum, new names", &mut new)]
    {
        let part = |some: &[Duration]| 100.0 * some.len() as f64 / (TIMES * ROUNDS) as f64;
        for (rounds, some) in [("one round", &mut times.acquire), ("two rounds", &mut times.twice)] {
            if !some.is_empty() {
                let (of, acquire) = (part(some), median(some));
                println!("{what}, {rounds} ({of:.0} %): acquire {acquire:.0} us ({:.2})", acquire / base.0);
            }
        }
        let release = median(&mut times.release);
        println!("{what}: release {release:.0} us ({:.2})", release / base.1);
    }
    Ok(())
}
