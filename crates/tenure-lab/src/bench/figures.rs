//! Results of a benchmark, as JSON and as a row for people.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::meter::Run;
use crate::bench::plan::{Case, Plan};

/// Result of one case.
#[derive(Clone, Debug)]
pub struct Figures {
    case: Case,
    tasks: usize,
    time: Duration,
    operations: u64,
    per_second: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    commands_per_operation: Option<f64>,
    client_cpu_us_per_operation: Option<f64>,
    server_cpu_us_per_operation: Option<f64>,
    told: String,
}

/// The head of the table of [`Figures::row`]s.
pub const HEAD: &str =
    "CASE             TASKS  SECONDS  OPERATIONS   PER SECOND    P50 us    P99 us  COMMANDS  CLIENT us  SERVER us";

impl Figures {
    /// `commands` is how many were counted in how many operations.
    pub(super) fn of_run(
        plan: &Plan,
        run: Run,
        commands: Option<(u64, u64)>,
        server_cpu: Option<Duration>,
        told: String,
    ) -> Self {
        let Run { done, mut latencies, client_cpu } = run;
        let each = |cpu: Duration| part(cpu.as_secs_f64() * 1e6, done);
        Self {
            case: plan.case,
            tasks: plan.tasks,
            time: plan.time,
            operations: latencies.count() as u64,
            per_second: rounded(number(latencies.count() as u64) / plan.time.as_secs_f64(), 10.0),
            p50_us: latencies.percentile(0.5),
            p99_us: latencies.percentile(0.99),
            commands_per_operation: commands.and_then(|(commands, operations)| part(number(commands), operations)),
            client_cpu_us_per_operation: each(client_cpu),
            server_cpu_us_per_operation: server_cpu.and_then(each),
            told,
        }
    }

    /// For programs. What could not be found, as a latency where nothing was done, is null.
    pub fn to_json(&self) -> Value {
        json!({
            "case": self.case,
            "tasks": self.tasks,
            "seconds": self.time.as_secs_f64(),
            "operations": self.operations,
            "per_second": self.per_second,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "commands_per_operation": self.commands_per_operation,
            "client_cpu_us_per_operation": self.client_cpu_us_per_operation,
            "server_cpu_us_per_operation": self.server_cpu_us_per_operation,
        })
    }

    /// A line of a table.
    pub fn row(&self) -> String {
        let shown = |figure: Option<f64>, places: usize| figure.map_or_else(|| "-".into(), |figure| format!("{figure:.places$}"));
        format!(
            "{:15} {:>6}  {:>7}  {:>10}  {:>11.1}  {:>8}  {:>8}  {:>8}  {:>9}  {:>9}",
            self.case,
            self.tasks,
            self.time.as_secs_f64(),
            self.operations,
            self.per_second,
            shown(self.p50_us, 1),
            shown(self.p99_us, 1),
            shown(self.commands_per_operation, 2),
            shown(self.client_cpu_us_per_operation, 2),
            shown(self.server_cpu_us_per_operation, 2),
        )
    }

    /// Describes an operation of the case, and how the case was set up.
    pub fn told(&self) -> String {
        format!("{}: {} {}", self.case, self.tasks, self.told)
    }
}

fn part(sum: f64, count: u64) -> Option<f64> {
    (count > 0).then(|| rounded(sum / number(count), 1_000.0))
}

fn rounded(figure: f64, to: f64) -> f64 {
    (figure * to).round() / to
}

#[allow(clippy::cast_precision_loss, reason = "nobody counts beyond 2^53")]
fn number(count: u64) -> f64 {
    count as f64
}
