//! The table: the service with the layer beside the same service without it, in turns.

use std::fs;
use std::time::Duration;

use crate::Error;
use crate::measured::{Measured, Plan, measure};
use crate::process::{Service, Store};

const DAY: f64 = 86_400.0;
/// Time of each rate while the limit is looked for.
const STEP: Duration = Duration::from_secs(4);
/// Latency of one in a hundred above which a rate counts as too high.
const TOO_SLOW: Duration = Duration::from_millis(100);
/// Part of the planned rate that has to be served, and of the limit while twice as many come.
const KEPT: f64 = 0.9;
const KEPT_IN_OVERLOAD: f64 = 0.5;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Store of the locks; a Redis is started without it
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Requests in a second
    #[arg(long, default_value_t = 6_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Seconds for each of both services
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Turns of each
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Most connections of the generator, which opens them as it needs them
    #[arg(long, default_value_t = 8_192, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Threads of the service
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Does not look for the rate at which each service saturates
    #[arg(long)]
    no_limit: bool,
}

/// Highest rate that a service keeps up with.
#[derive(Debug, Default, PartialEq, Eq)]
enum Limit {
    /// Nobody looked for it.
    #[default]
    Unknown,
    /// It did not keep up with the first one that was tried.
    Below(u64),
    At(u64),
}

impl Limit {
    /// Raises the rate by a tenth each time, until `step` says that the service does not keep up.
    async fn find(first: u64, mut step: impl AsyncFnMut(u64) -> Result<bool, Error>) -> Result<Self, Error> {
        let (mut limit, mut rate) = (Self::Below(first), first);
        while step(rate).await? {
            limit = Self::At(rate);
            rate += (rate / 10).max(1);
        }
        Ok(limit)
    }

    fn rate(&self) -> Option<u64> {
        if let Self::At(rate) = self { Some(*rate) } else { None }
    }

    /// Says why there is none.
    fn complaint(&self) -> Option<String> {
        match self {
            Self::Below(rate) => {
                Some(format!("it did not keep up with {rate} a second, the first rate of the search for its limit"))
            }
            _ => None,
        }
    }
}

/// A service, and what was measured of it.
struct Side {
    name: &'static str,
    service: Service,
    measured: Measured,
    cpu: Duration,
    store_cpu: Duration,
    limit: Limit,
    /// At twice the limit.
    overload: Option<Measured>,
}

impl Side {
    fn new(name: &'static str, service: Service) -> Result<Self, Error> {
        let (measured, cpu, store_cpu) = (Measured::new()?, Duration::ZERO, Duration::ZERO);
        Ok(Self { name, service, measured, cpu, store_cpu, limit: Limit::Unknown, overload: None })
    }

    async fn turn(&mut self, store: &Store, plan: Plan) -> Result<(), Error> {
        let (cpu, store_cpu) = (self.service.cpu()?, store.cpu()?);
        self.measured.append(&measure(self.service.at, plan).await?)?;
        self.cpu += self.service.cpu()?.saturating_sub(cpu);
        self.store_cpu += store.cpu()?.saturating_sub(store_cpu);
        Ok(())
    }

    async fn find_limit(&mut self, plan: Plan) -> Result<(), Error> {
        let at = self.service.at;
        let step = async |rate| {
            let step = measure(at, Plan { rate, time: STEP, ..plan }).await?;
            Ok(step.failed == 0 && step.quantile(0.99) <= TOO_SLOW)
        };
        self.limit = Limit::find(plan.rate, step).await?;
        Ok(())
    }

    /// Sends twice as many as the service can answer.
    async fn overload(&mut self, plan: Plan) -> Result<(), Error> {
        if let Some(limit) = self.limit.rate() {
            self.overload = Some(measure(self.service.at, Plan { rate: limit * 2, time: STEP, ..plan }).await?);
        }
        Ok(())
    }

    /// Says why the figures are not those of a service that kept up.
    fn complaint(&self, rate: u64) -> Option<String> {
        let Self { name, measured, .. } = self;
        if let Some(why) = measured.complaint(rate, KEPT) {
            return Some(format!("{name}: {why}"));
        }
        if let Some(why) = self.limit.complaint() {
            return Some(format!("{name}: {why}"));
        }
        let (overload, limit) = (self.overload.as_ref()?, self.limit.rate()?);
        // Refusals are the right answer to that.
        let (served, limit) = (overload.rate(), whole(limit));
        (served < limit * KEPT_IN_OVERLOAD)
            .then(|| format!("{name}: {served:.0} a second were served of twice the limit, which is {limit:.0}"))
    }

    fn print(&self) {
        let Self { name, measured, .. } = self;
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| millis(measured.quantile(quantile)));
        let (longest, rate) = (millis(measured.longest()), measured.rate());
        let (served, failed) = (measured.served, measured.failed);
        let [cpu, store_cpu] = [self.cpu, self.store_cpu].map(|cpu| each(cpu, served + failed));
        let limit = match self.limit {
            Limit::Unknown => "-".to_owned(),
            Limit::Below(rate) => format!("<{rate}"),
            Limit::At(rate) => rate.to_string(),
        };
        println!(
            "{name:<14}{served:>9}{failed:>8}{rate:>9.0}{p50:>9}{p99:>9}{p999:>9}{longest:>9}{cpu:>9}{store_cpu:>9}{limit:>9}"
        );
    }
}

fn whole(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn millis(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1_000.0)
}

/// Microseconds for each of `n`.
fn each(time: Duration, n: u64) -> String {
    format!("{:.1}", time.as_secs_f64() * 1_000_000.0 / whole(n).max(1.0))
}

/// Processes that want to run, as the kernel averages them over a minute.
fn machine_load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(compare(args))
}

async fn compare(args: &Args) -> Result<(), Error> {
    let store = Store::start(args.store.as_deref());
    let before = machine_load();
    let mut sides = [
        Side::new("with the layer", Service::start(Some(&store.url), args.threads)?)?,
        Side::new("without it", Service::start(None, args.threads)?)?,
    ];
    let time = Duration::from_secs((args.seconds / u64::from(args.turns)).max(1));
    let plan = Plan { rate: args.rate, time, connections: args.connections };
    for side in &mut sides {
        // The first second of a service is another: pages, connections, the connection to the store.
        measure(side.service.at, Plan { time: Duration::from_secs(1), rate: args.rate.div_ceil(2), ..plan }).await?;
    }
    for _ in 0..args.turns {
        for side in &mut sides {
            side.turn(&store, plan).await?;
        }
    }
    if !args.no_limit {
        for side in &mut sides {
            side.find_limit(plan).await?;
        }
        let [with, _] = &mut sides;
        with.overload(plan).await?;
    }
    print(args, &sides, &before);
    match sides.iter().find_map(|side| side.complaint(args.rate)) {
        Some(why) => Err(why.into()),
        None => Ok(()),
    }
}

fn print(args: &Args, sides: &[Side], before: &str) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let Args { rate, turns, connections, .. } = args;
    let seconds = u64::from(*turns) * (args.seconds / u64::from(*turns)).max(1);
    println!("{rate} requests/s for {seconds} s each, in {turns} turns, over at most {connections} connections;");
    println!("latencies in ms from the planned time; the service has {} thread(s), the machine {cores} cores", args.threads);
    println!();
    println!(
        "{:<14}{:>9}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "", "served", "failed", "each s", "p50", "p99", "p99.9", "longest", "cpu us", "store us", "limit/s"
    );
    for side in sides {
        side.print();
    }
    println!();
    for Side { name, measured: Measured { at_once, held, .. }, .. } in sides {
        println!("{name}: {at_once} requests under way at most; {held} waited for a connection");
    }
    for Side { name, overload, limit, .. } in sides {
        let (Some(limit), Some(overload)) = (limit.rate(), overload) else { continue };
        let Measured { refused, failed, at_once, held, .. } = overload;
        println!(
            "{name}, at twice its limit ({}/s for {} s): {:.0} served a second, {refused} refused with 503, {} failed otherwise; \
             p99 {} ms, {at_once} under way at most, {held} waited for a connection",
            limit * 2,
            STEP.as_secs(),
            overload.rate(),
            failed - refused,
            millis(overload.quantile(0.99)),
        );
    }
    let late = sides.iter().map(|side| side.measured.late).max().unwrap_or_default();
    println!(
        "generator behind its plan by {} ms at most; load of the machine {before} before, {} after",
        millis(late),
        machine_load()
    );
    if let [with, ..] = sides {
        let day = with.measured.rate() * DAY / 1_000_000.0;
        println!("{day:.0} million requests a day at this rate; 300 million a day are {:.0} a second", 300_000_000.0 / DAY);
    }
    println!("limit/s: the highest rate with every answer, and 99 of 100 within {} ms", TOO_SLOW.as_millis());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_did_not_keep_up_fails() {
        let kept = |served, failed, held, secs| {
            let took = Duration::from_secs(secs);
            let mut measured = Measured::new().unwrap();
            (measured.served, measured.failed, measured.held, measured.took) = (served, failed, held, took);
            measured.complaint(100, KEPT)
        };
        assert_eq!(kept(1_000, 0, 0, 10), None);
        assert!(kept(999, 1, 0, 10).unwrap().contains("1 requests"));
        assert!(kept(1_000, 0, 0, 20).unwrap().contains("50 a second"));
        assert!(kept(1_000, 0, 7, 10).unwrap().contains("7 requests"));
    }

    #[tokio::test]
    async fn a_service_that_does_not_keep_up_with_the_first_rate_fails_the_run() {
        let find = |first: u64| Limit::find(first, async |rate| Ok(rate <= 120));
        let limit = find(100).await.unwrap();
        assert_eq!((&limit, limit.complaint()), (&Limit::At(110), None));
        let limit = find(200).await.unwrap();
        assert!(limit.complaint().is_some_and(|why| why.contains("200")), "{limit:?}");
        assert_eq!(Limit::Unknown.complaint(), None);
    }
}
