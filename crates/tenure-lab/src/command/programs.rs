//! The programs that a command needs: servers, and itself once more.

use std::ffi::OsStr;
use std::path::Path;

use tenure_lab::Lab;
use tenure_lab::soak::Engine;
use tenure_testkit::{Program, mariadb, postgres, zookeeper};

use super::exit::{Failure, UNREACHABLE};

/// The word by which this program is called to become a process under test.
pub(super) const WORKER: &str = "__worker";

/// This program as the processes under test, with a process beside it that ends them when it is ended itself.
pub(super) fn processes() -> Result<Lab, Failure> {
    let lost = |error| Failure::new(UNREACHABLE, format!("the file of this program cannot be found, {error}"));
    let program = std::env::current_exe().map_err(lost)?;
    let unwatched = |error| Failure::new(UNREACHABLE, format!("no process could be started to clean up after the run, {error}"));
    tenure_testkit::guardian::watch_over_us().map_err(unwatched)?;
    Ok(Lab { program: Program::new([program.as_os_str(), WORKER.as_ref()]) })
}

/// Tells of a missing server before anything is run; `why` it is needed.
pub(super) fn find_server(why: &str) -> Result<(), Failure> {
    let named = std::env::var_os("TENURE_REDIS_SERVER").filter(|path| !path.is_empty());
    let program = named.unwrap_or_else(|| "redis-server".into());
    find(&program, "--version", why, "install redis-server or name one in TENURE_REDIS_SERVER")
}

/// As [`find_server`], of another engine; `instead` is what else can be done.
pub(super) fn find_engine(engine: Engine, why: &str, instead: &str) -> Result<(), Failure> {
    let find = |program: &OsStr, argument, package| find(program, argument, why, &format!("install {package}, {instead}"));
    match engine {
        Engine::Etcd => {
            find("etcd".as_ref(), "--version", "etcd-server")?;
            find("etcdctl".as_ref(), "version", "etcd-client")
        }
        Engine::MariaDb => find(mariadb::program().as_os_str(), "--version", "mariadb-server"),
        Engine::Memcached => find("memcached".as_ref(), "--version", "memcached"),
        Engine::Postgres => find(postgres::program("postgres").as_os_str(), "--version", "postgresql"),
        Engine::ZooKeeper => {
            find("java".as_ref(), "--version", "zookeeper")?;
            if Path::new(zookeeper::CLASSES).exists() {
                return Ok(());
            }
            let text = format!("there is no {}, and {why}; install zookeeper, {instead}", zookeeper::CLASSES);
            Err(Failure::new(UNREACHABLE, text))
        }
    }
}

/// Tells of a missing program, `why` it is needed and the `fix`.
pub(super) fn find(program: &OsStr, argument: &str, why: &str, fix: &str) -> Result<(), Failure> {
    let found = std::process::Command::new(program).arg(argument).stdout(std::process::Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    Err(Failure::new(UNREACHABLE, format!("{} cannot be run, and {why}; {fix}", program.to_string_lossy())))
}
