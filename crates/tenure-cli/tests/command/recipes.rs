//! docs/recipes.md block by block: each is run as it stands on the page, as far as that goes without the services of a system.

#[allow(unreachable_pub, clippy::print_stdout, reason = "it stands on the page as a program has it")]
mod service;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{self, Ended, Place, Running, script, wait_for};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenure_testkit::{RedisServer, Spawned, page};

/// The block under a heading of the page.
fn recipe(heading: &str, language: &str) -> String {
    page::blocks("recipes.md", heading, language).swap_remove(0)
}

/// A server, and the programs that the page names.
struct Here {
    place: Place,
    server: RedisServer,
}

impl Here {
    fn new() -> Self {
        let (place, server) = (Place::new(), RedisServer::start());
        fs::create_dir(place.path("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tenure"), place.path("bin/tenure")).unwrap();
        Self { place, server }
    }

    /// A program of the page.
    fn program(&self, name: &str, text: &str) {
        script(&self.place.path("bin").join(name), &format!("#!/bin/sh\n{text}\n"));
    }

    /// A program of the page that stays until it gets TERM, and says so.
    fn service(&self, name: &str) {
        self.program(name, "trap 'echo term >> ended; exit 0' TERM; echo $TENURE_FENCE >> started; while :; do sleep 0.05; done");
    }

    /// A job as cron starts it: by a shell, with the PATH of the crontab.
    fn cron(&self, crontab: &str) -> Command {
        let (variables, line) = job_of(crontab);
        let mut command = self.shell(&line);
        // Debian's, unless the file says otherwise.
        command.env("PATH", "/usr/bin:/bin");
        for (name, value) in variables.into_iter().filter(|(name, _)| name != "TENURE_STORE") {
            // Programs of the reader's own are ours.
            command.env(name, value.replace("/usr/local/bin", &self.place.path("bin").display().to_string()));
        }
        command
    }

    fn settled(&self, mut command: Command) -> Command {
        self.place.settle(&mut command);
        let path = format!("{}:{}", self.place.path("bin").display(), std::env::var("PATH").unwrap());
        command
            .env("PATH", path)
            .env("HOME", self.place.path("home"))
            .env("TENURE_STORE", format!("{}?timeout=3s", self.server.url()));
        command
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        self.settled(command)
    }

    fn shell(&self, text: &str) -> Command {
        self.command(&["sh", "-c", text].map(String::from))
    }

    fn run(&self, words: &[String]) -> Ended {
        Ended::from(Spawned::output(&mut self.command(words)).unwrap())
    }

    /// A word of a file that a service manager reads: what stands for the reader's own is ours.
    fn ours(&self, text: &str) -> String {
        text.replace("/usr/local/bin/", &format!("{}/", self.place.path("bin").display()))
    }

    fn tenure(&self, words: &str) -> Ended {
        self.run(&format!("tenure {words}").split(' ').map(String::from).collect::<Vec<_>>())
    }

    fn is_free(&self, name: &str) -> bool {
        self.tenure(&format!("show --check {name}")).code == 1
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(String::from).collect()
}

/// The value of the first line of a file that begins like this.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    text.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap_or_else(|| panic!("no {key}: {text}")).trim()
}

#[test]
fn completions_and_pages_are_installed() {
    let here = Here::new();
    let ended = Ended::from(Spawned::output(&mut here.shell(&recipe("Install", "sh"))).unwrap());
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    let home = here.place.path("home/.local/share");
    let script = home.join("bash-completion/completions/tenure");
    assert!(here.run(&["bash".into(), "-n".into(), script.display().to_string()]).code == 0);
    for page in ["tenure.1", "tenure-run.1", "tenure-show.1"] {
        assert!(fs::read_to_string(home.join("man/man1").join(page)).unwrap().contains(".TH"), "{page}");
    }
}

/// The variables of a crontab, and the command of its only job.
fn job_of(crontab: &str) -> (Vec<(String, String)>, String) {
    let (variables, jobs): (Vec<&str>, Vec<&str>) = crontab.lines().partition(|line| !line.contains(' '));
    let variables: Vec<_> =
        variables.iter().map(|line| line.split_once('=').unwrap()).map(|(name, value)| (name.into(), value.into())).collect();
    assert!(variables.contains(&("TENURE_STORE".to_owned(), "redis://cache".to_owned())), "{variables:?}");
    let [job] = jobs[..] else { panic!("{jobs:?}") };
    let fields: Vec<&str> = job.split_whitespace().take(5).collect();
    assert!(fields.iter().all(|field| field.chars().all(|c| c.is_ascii_digit() || "*/,-".contains(c))), "{fields:?}");
    // In the command of a crontab a % is a line break.
    assert!(!job.contains('%'));
    (variables, job.split("  ").nth(1).unwrap().to_owned())
}

#[test]
fn a_crontab() {
    let here = Here::new();
    here.program("report", "echo report >> ran");
    let run = |heading: &str| {
        let ended = Ended::from(Spawned::output(&mut here.cron(&recipe(heading, "crontab"))).unwrap());
        assert_eq!(format!("{}{}", ended.out, ended.err), "", "cron would send mail");
        ended.code
    };
    assert_eq!((run("cron: not"), here.tenure("acquire report").code, run("cron: not")), (0, 0, 75));
    assert_eq!(here.place.read("ran"), "report\n");
    // Of five hosts: the name stays taken when the job has ended.
    assert_eq!(here.tenure("break report").code, 0);
    here.program("report", "echo report >> ran; exit 1");
    assert_eq!((run("cron: once"), run("cron: once")), (1, 75));
    assert_eq!(here.place.read("ran"), "report\nreport\n");
}

#[test]
fn a_timer_and_a_job_of_systemd() {
    let here = Here::new();
    here.program("report", "echo report >> ran");
    let code = |unit: &str| here.run(&words(&here.ours(value(unit, "ExecStart=")))).code.to_string();
    let [service, timer] = &page::blocks("recipes.md", "systemd timer", "ini")[..] else { panic!("two files") };
    assert_eq!((code(service).as_str(), code(service).as_str()), ("0", value(service, "SuccessExitStatus=")));
    assert_eq!(here.place.read("ran"), "report\n");
    // A run that a late host catches up on takes the name for half a day, and with it the next regular tick.
    assert!(!timer.contains("Persistent="), "{timer}");
    // Midnight, at half past two.
    assert_eq!(value(timer, "OnCalendar="), "*-*-* 02:30:00");
    verify_units(&here, &[("report.service", service), ("report.timer", timer)]);
    let unit = recipe("systemd: a job", "ini");
    verify_units(&here, &[("report.service", &unit)]);
    assert_eq!(value(&unit, "Environment="), "TENURE_STORE=redis://cache");
    here.tenure("break report");
    assert_eq!((code(&unit).as_str(), here.tenure("acquire report").code), ("0", 0));
    assert_eq!((code(&unit).as_str(), here.place.read("ran").as_str()), (value(&unit, "SuccessExitStatus="), "report\nreport\n"));
}

/// Has systemd itself read the files.
fn verify_units(here: &Here, units: &[(&str, &String)]) {
    let paths: Vec<_> = units
        .iter()
        .map(|(name, text)| {
            let path = here.place.path(name);
            fs::write(&path, here.ours(text)).unwrap();
            path
        })
        .collect();
    let said = Spawned::output(Command::new("systemd-analyze").arg("verify").args(&paths)).unwrap();
    assert!(said.status.success(), "systemd-analyze(1): {}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn a_service_of_systemd() {
    let here = Here::new();
    here.service("serve");
    let unit = recipe("systemd: a service", "ini");
    verify_units(&here, &[("serve.service", &unit)]);
    let command = words(&here.ours(value(&unit, "ExecStart=")));
    let first = Running::start(&mut here.command(&command));
    here.place.line("started");
    let second = Running::start(&mut here.command(&command));
    // A loss has it started again, by the next holder.
    assert_eq!(here.tenure("break leader").code, 0);
    wait_for("the service to be started again", || here.place.read("started").lines().count() == 2);
    assert_eq!(here.place.line("ended"), "term");
    // With KillMode=mixed, the end of a unit is a TERM to its first process.
    assert_eq!(value(&unit, "KillMode="), "mixed");
    for run in [first, second] {
        run.signal(Signal::SIGTERM);
        let ended = run.end();
        // Else each stop would leave a failed unit.
        assert!(ended.code == 0 || value(&unit, "SuccessExitStatus=") == ended.code.to_string(), "{ended:?}");
    }
    assert!(here.is_free("leader"));
}

/// Fields of a `CronJob` that the page uses, below the last word of their path, as `kubectl explain cronjob --recursive` has them.
const CRON_JOB: [(&str, &str); 7] = [
    ("", "apiVersion kind metadata spec"),
    ("metadata", "name"),
    ("spec", "schedule startingDeadlineSeconds jobTemplate"),
    ("jobTemplate.spec", "backoffLimit activeDeadlineSeconds template"),
    ("template.spec", "restartPolicy containers"),
    ("containers", "name image command env"),
    ("env", "name value name valueFrom"),
];

/// Refuses a field that a `CronJob` has not, and one too few. A part of YAML: a line for each field.
fn check_cron_job(manifest: &str) {
    let mut path: Vec<(usize, &str)> = Vec::new();
    let mut seen: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for line in manifest.lines() {
        let field = line.trim_start().trim_start_matches("- ");
        let (depth, key) = (line.len() - field.len(), field.split_once(':').unwrap().0);
        path.retain(|(outer, _)| *outer < depth);
        let above: Vec<_> = path.iter().map(|(_, key)| *key).collect();
        let from = above.len().saturating_sub(if above.len() > 1 && above.ends_with(&["spec"]) { 2 } else { 1 });
        seen.entry(above[from..].join(".")).or_default().push(key);
        path.push((depth, key));
    }
    assert_eq!(seen.remove("valueFrom"), Some(vec!["secretKeyRef"]));
    for (at, fields) in CRON_JOB {
        assert_eq!(seen.remove(at).unwrap_or_default().join(" "), fields, "{at}");
    }
    // The one between them has a spec alone.
    seen.retain(|_, fields| *fields != ["spec"]);
    assert!(seen.is_empty(), "no fields of a CronJob: {seen:?}");
    for (field, expected) in [
        ("apiVersion:", "batch/v1"),
        ("kind:", "CronJob"),
        ("restartPolicy:", "Never"),
        ("valueFrom:", ""),
        ("secretKeyRef:", "{name: redis, key: password}"),
    ] {
        assert_eq!(value(manifest, field), expected, "{field}");
    }
}

#[test]
fn a_job_of_kubernetes() {
    let here = Here::new();
    here.program("report", "echo report >> ran");
    let manifest = recipe("Kubernetes", "yaml");
    check_cron_job(&manifest);
    let command: Vec<String> = serde_json::from_str(value(&manifest, "command:")).unwrap();
    assert!(manifest.lines().all(|line| (line.len() - line.trim_start().len()).is_multiple_of(2) && !line.contains('\t')));
    assert_eq!(here.run(&command).code, 0);
    assert_eq!(here.run(&command).code, 0, "the job would be tried again");
    // One that starts later than half a period takes the name of the next tick.
    assert_eq!(value(&manifest, "schedule:"), "\"*/5 * * * *\"");
    let seconds = |field| value(&manifest, field).parse::<u32>().unwrap();
    seconds("backoffLimit:");
    assert!(seconds("startingDeadlineSeconds:") + seconds("activeDeadlineSeconds:") < 150);
    assert_eq!(here.place.read("ran"), "report\n");
}

#[test]
fn the_first_process_of_a_container() {
    let here = Here::new();
    // It leaves a process that its own first process has to collect.
    here.program(
        "serve",
        "(sleep 0.1 &); trap 'echo term >> ended; exit 0' TERM; echo $$ >> started; while :; do sleep 0.05; done",
    );
    let file = recipe("Container", "dockerfile");
    let list = |key: &str| serde_json::from_str::<Vec<String>>(value(&file, key)).unwrap();
    let unshare = ["unshare", "-rpf", "--mount-proc", "--kill-child=KILL"].map(String::from);
    let command = [&unshare[..], &list("ENTRYPOINT "), &list("CMD ")].concat();
    let container = Running::start(&mut here.command(&command));
    here.place.line("started");
    assert!(!here.is_free("leader"));
    // `docker stop` sends TERM to the first process.
    let first = common::children(container.pid())[0];
    kill(first, Signal::SIGTERM).unwrap();
    let ended = container.end();
    assert_eq!((ended.code, here.place.line("ended").as_str()), (0, "term"), "{ended:?}");
    assert!(here.is_free("leader"));
}

#[test]
fn a_script_that_holds_until_its_end() {
    let here = Here::new();
    let text = recipe("Shell script: hold", "sh");
    here.program("backup", "tenure show --check backup && echo held >> ran");
    let ended = Ended::from(Spawned::output(&mut here.shell(&text)).unwrap());
    assert_eq!((ended.code, here.place.read("ran").as_str()), (0, "held\n"), "{ended:?}");
    assert!(here.is_free("backup"));
    // Ended from outside, or by a loss: the work cleans up and ends before the lock is free.
    here.program(
        "backup",
        "trap 'sleep 0.3; echo one >> cleaned; sleep 0.3; echo two >> cleaned; exit 1' TERM; \
         sleep 600 & echo $! > child; echo $$ >> begun; \
         while :; do sleep 0.1; done",
    );
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut running = Running::start(&mut here.shell(&text));
        let backup = here.place.pid("begun");
        running.signal(signal);
        let status = running.status();
        assert_eq!(common::code(status), 143, "{signal}");
        assert!(here.is_free("backup"), "{signal}");
        assert_eq!(kill(backup, None), Err(Errno::ESRCH), "{signal}: the work goes on without the lock");
        assert!(common::is_dead(here.place.pid("child")), "{signal}: a part of the work goes on without the lock");
        assert_eq!(here.place.read("cleaned"), "one\ntwo\n", "{signal}");
        for file in ["begun", "cleaned"] {
            fs::remove_file(here.place.path(file)).unwrap();
        }
    }
    // Also in the moment before the work begins, and in the one after.
    here.program("backup", "echo $$ >> begun; exec sleep 60");
    fs::write(here.place.path("begun"), "").unwrap();
    for moment in ["kill $$\nbackup &\n", "backup &\nkill $$\n"] {
        let soon = text.replacen("backup &\n", moment, 1);
        assert_ne!(soon, text);
        // On a busy machine the shell takes longer to start the work.
        let later = soon.replace("sleep 0.2;", "sleep 2;");
        assert_ne!(later, soon);
        let begun = Instant::now();
        let ended = Ended::from(Spawned::output(&mut here.shell(&later)).unwrap());
        assert!(ended.code == 143 && begun.elapsed() < Duration::from_secs(30), "{moment:?}: {ended:?}");
        assert!(here.is_free("backup"), "{moment:?}");
        let gone = |work: &str| kill(Pid::from_raw(work.parse().unwrap()), None) == Err(Errno::ESRCH);
        assert!(here.place.read("begun").lines().all(gone), "{moment:?}: it goes on without the lock");
    }
}

#[test]
fn workers_five_at_a_time() {
    let here = Here::new();
    let fetch = "mkdir in.$$; ls -d in.* | wc -l >> most; sleep 0.1; rmdir in.$$; echo $1 >> fetched";
    here.program("fetch", fetch);
    let urls: Vec<_> = (0..30).map(|n| format!("https://host/{n}\n")).collect();
    fs::write(here.place.path("urls"), urls.concat()).unwrap();
    let ended = Ended::from(Spawned::output(&mut here.shell(&recipe("xargs", "sh"))).unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(here.place.read("fetched").lines().count(), 30);
    let most = here.place.read("most").lines().map(|line| line.trim().parse::<u32>().unwrap()).max();
    assert!(most.is_some_and(|most| (2..=5).contains(&most)), "{most:?}");
}

#[test]
fn a_script_that_only_looks() {
    let here = Here::new();
    let text = recipe("Shell script: is it", "sh");
    let run = || Ended::from(Spawned::output(&mut here.shell(&text)).unwrap());
    assert_eq!(run().out, "no deployment is running\n");
    assert_eq!(here.tenure("acquire --ttl 6s deploy").code, 0);
    let begun = Instant::now();
    assert_eq!(run().out, "a deployment is running\nno deployment is running\n");
    assert!(begun.elapsed() < Duration::from_secs(14), "took {:?}", begun.elapsed());
    let mut away = here.shell(&text);
    let ended = Ended::from(Spawned::output(away.env("TENURE_STORE", "redis://127.0.0.1:1")).unwrap());
    assert_eq!((ended.code, &*ended.out), (69, ""), "nobody knows: {ended:?}");
}

/// Says how the recipe's process is started: this binary once more.
const ROLE: &str = "TENURE_RECIPE_STORE";

/// The work of the recipe: until the end.
async fn lead() {
    fs::write(std::env::var("TENURE_RECIPE_SAYS").unwrap(), "leads\n").unwrap();
    std::future::pending::<()>().await;
}

/// Not a case: the service begins here.
#[tokio::test(flavor = "current_thread")]
async fn service_begins() {
    let Ok(url) = std::env::var(ROLE) else { return };
    service::serve(&tenure_redis::connect(&url).await.unwrap()).await.unwrap();
}

#[test]
fn a_service_that_gives_its_locks_up() {
    let text = include_str!("recipes/service.rs").replace("use super::lead;\n", "");
    assert_eq!(recipe("Rust", "rust"), text, "the page has another text than what is tested");
    let here = Here::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "recipes::service_begins", "--nocapture"]).env("TENURE_RECIPE_SAYS", here.place.path("says"));
    let mut command = here.settled(command);
    let running = Running::start(command.env(ROLE, here.server.url()));
    assert_eq!(here.place.line("says"), "leads");
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(here.is_free("leader"), "it stays taken for its ttl");
}

/// The versions are ours, and those that ours are compiled with.
#[test]
fn the_dependencies_are_ours() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml")).unwrap();
    let own: toml::Table = manifest.parse().unwrap();
    let wanted: toml::Table = recipe("Rust", "toml").parse().unwrap();
    let dependencies = wanted["dependencies"].as_table().unwrap();
    let version = own["workspace"]["package"]["version"].as_str().unwrap();
    for name in ["tenure", "tenure-redis"] {
        assert!(version.starts_with(dependencies[name].as_str().unwrap()), "{name}");
    }
    assert_eq!(dependencies["tokio"]["version"], own["workspace"]["dependencies"]["tokio"]["version"]);
}
