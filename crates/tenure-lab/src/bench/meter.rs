//! Latencies, and what a run has used.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use redis::{Connection, cmd};
use tenure::{BootTime, Error};

/// Spans in tenths of a microsecond: all of them, in half the memory.
#[derive(Debug, Default)]
pub(super) struct Latencies(Vec<u32>);

impl Latencies {
    pub(super) fn add(&mut self, span: Duration) {
        self.0.push(u32::try_from(span.as_nanos() / 100).unwrap_or(u32::MAX));
    }

    pub(super) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The span, in microseconds, that this part of all did not exceed; `None` without any.
    pub(super) fn percentile(&mut self, part: f64) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "an index")]
        let index = (part * last as f64).round() as usize;
        let (_, span, _) = self.0.select_nth_unstable(index);
        Some(f64::from(*span) / 10.0)
    }
}

/// Work of one task, or of a whole run.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// All operations, to the end of what was under way.
    pub(super) done: u64,
    /// Of those that were done in time.
    pub(super) latencies: Latencies,
    /// CPU time that the client has used for all of them.
    pub(super) client_cpu: Duration,
}

impl Run {
    /// An operation that ended at `ended`, of a run that is timed until `until`.
    pub(super) fn count(&mut self, began: BootTime, ended: BootTime, until: BootTime) {
        self.done += 1;
        if ended <= until {
            self.latencies.add(ended.since(began));
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.done += other.done;
        self.latencies.append(other.latencies);
        self.client_cpu += other.client_cpu;
    }
}

/// CPU that is used from its making on.
pub(super) struct Usage {
    client: Duration,
    servers: Vec<(Connection, Duration)>,
}

/// CPU that was used, by user and system.
pub(super) struct Used {
    pub(super) client: Duration,
    pub(super) servers: Option<Duration>,
}

impl Usage {
    /// Of this process, and of the servers that may be asked.
    pub(super) fn begin(servers: Vec<Connection>) -> Result<Self, Error> {
        let with_cpu = |mut server| server_cpu(&mut server).map(|cpu| (server, cpu));
        Ok(Self { servers: servers.into_iter().map(with_cpu).collect::<Result<_, _>>()?, client: client_cpu() })
    }

    pub(super) fn end(self) -> Result<Used, Error> {
        let client = client_cpu().saturating_sub(self.client);
        let since = |(mut server, before)| server_cpu(&mut server).map(|after| after.saturating_sub(before));
        let each = self.servers.into_iter().map(since).collect::<Result<Vec<_>, _>>()?;
        Ok(Used { client, servers: (!each.is_empty()).then(|| each.iter().sum()) })
    }
}

/// Returns the CPU time that this process has used so far.
pub(super) fn client_cpu() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let spans = [usage.user_time(), usage.system_time()];
    spans.iter().map(|span| Duration::from_micros(span.num_microseconds().unsigned_abs())).sum()
}

/// Returns the CPU time that the server has used so far, as it reports it.
fn server_cpu(server: &mut Connection) -> Result<Duration, Error> {
    let unanswered = |error| Error::unreachable("the server does not say what it has used").with_source(error);
    let told: String = cmd("INFO").arg("cpu").query(server).map_err(unanswered)?;
    let seconds = |key: &str| told.lines().find_map(|line| line.trim().strip_prefix(key)?.parse::<f64>().ok());
    let used = ["used_cpu_user:", "used_cpu_sys:"].map(|key| seconds(key).unwrap_or(0.0));
    Ok(Duration::from_secs_f64(used.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_spans() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(0.5), None);
        for span in (0..=1_000).rev() {
            latencies.add(Duration::from_micros(span));
        }
        assert_eq!(latencies.percentile(0.5), Some(500.0));
        assert_eq!(latencies.percentile(0.99), Some(990.0));
        assert_eq!(latencies.count(), 1_001);
    }

    #[test]
    fn what_ended_late_has_no_latency() {
        let mut run = Run::default();
        let at = |seconds| BootTime::from_boot(Duration::from_secs(seconds));
        run.count(at(1), at(2), at(2));
        run.count(at(1), at(3), at(2));
        assert_eq!((run.done, run.latencies.count()), (2, 1));
    }

    #[test]
    fn cpu_is_what_was_used() {
        let (began, before) = (BootTime::now(), client_cpu());
        while client_cpu() < before + Duration::from_millis(5) {
            assert!(BootTime::now().since(began) < Duration::from_secs(10), "what is used is not counted");
        }
    }
}
