"""Who is compared, how each is built and how it is called.

A peer is a program: it takes URL CASE TASKS SECONDS, where CASE is cycle, handover or handover-fast. It prints the lines `begin` and
`end` when the time begins and ends, so that the server's part can be measured, and then one line of JSON:
{"operations", "seconds", "p50_us", "p99_us", "client_cpu_us_per_operation"}. Or it prints {"not_run": "why"} alone. It works for 0.3 s
before the time begins, or for as long as its compiler needs, and may leave its locks where they are when it ends. A new one is a
folder and an entry in PEERS.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ["CARGO_TARGET_DIR"], "compare").resolve() if os.environ.get("CARGO_TARGET_DIR") else HERE / "rust/target"


@dataclass(frozen=True)
class Build:
    """A folder with one or more peers in it, and what makes them from the registry's packages."""

    folder: str
    tools: tuple
    commands: tuple
    # In place of `commands`, if nothing is to be run: they find what does not build any more.
    trial: tuple = ()

    def missing(self):
        """Why it cannot be built here, or None."""
        absent = [tool for tool in self.tools if shutil.which(tool) is None]
        return f"{' and '.join(absent)} not installed" if absent else None

    def make(self, trial=False):
        for command in self.trial if trial and self.trial else self.commands:
            env = {**os.environ, "CARGO_TARGET_DIR": str(TARGET)}
            done = subprocess.run(command, cwd=HERE / self.folder, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr)
            if done.returncode != 0:
                raise Failure(f"{self.folder}: {' '.join(command)} ended with {done.returncode}")


@dataclass(frozen=True)
class Peer:
    name: str
    what: str
    build: Build
    command: tuple


class Failure(Exception):
    """Something that ends the comparison, told in one line."""


RUST = Build("rust", ("cargo",), (("cargo", "build", "--release", "--locked"),), (("cargo", "check", "--locked"),))
PACKAGES = (
    (sys.executable, "-m", "venv", "venv"),
    ("venv/bin/pip", "install", "-q", "--disable-pip-version-check", "-r", "requirements.txt"),
)
PYTHON = Build("python", (sys.executable,), PACKAGES, (*PACKAGES, ("venv/bin/python", "-B", "-c", "import peer")))
# Each time into an empty folder: what an older pom.xml named would be used as well.
JAVA = Build(
    "java",
    ("mvn", "javac", "java"),
    (
        ("rm", "-rf", "lib/peer"),
        ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib/peer/jars"),
        ("javac", "-d", "lib/peer/classes", "-cp", "lib/peer/jars/*", "Peer.java"),
    ),
)
GO = Build("go/peer", ("go",), (("go", "build", "-mod=readonly", "-buildvcs=false", "-o", "bin/peer", "."),))
MODULES = ("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
NODE = Build("node", ("node", "npm"), (MODULES,), (MODULES, ("node", "--check", "peer.mjs")))


# Those that take a majority of several servers, from the URL quorum+redis://HOST,HOST,...
QUORUM = ("tenure", "rslock")


def rust(peer):
    return (str(TARGET / "release/compare"), peer)


def python(way):
    return (str(HERE / "python/venv/bin/python"), str(HERE / "python/peer.py"), way)


def java(lock):
    return ("java", "-cp", f"{HERE / 'java/lib/peer/classes'}{os.pathsep}{HERE / 'java/lib/peer/jars'}/*", "Peer", lock)


def go(library):
    return (str(HERE / "go/peer/bin/peer"), library)


PEERS = (
    Peer("raw", "the limit: a bare socket", RUST, rust("raw")),
    Peer("tenure", "fenced, in order", RUST, rust("tenure")),
    Peer("wake-retry", "bare sockets: a release wakes all, who try again", RUST, rust("wake-retry")),
    Peer("wake-one", "bare sockets: a release wakes one, who tries again", RUST, rust("wake-one")),
    Peer("rslock", "Rust, rslock 0.10", RUST, rust("rslock")),
    Peer("distributed-lock", "Rust, distributed-lock 0.2", RUST, rust("distributed-lock")),
    Peer("redisson", "Java, Redisson 4.7, RLock", JAVA, java("redisson")),
    Peer("redisson-fenced", "Java, Redisson 4.7, RFencedLock", JAVA, java("redisson-fenced")),
    Peer("redsync", "Go, redsync 4.18, go-redis 9", GO, go("redsync")),
    Peer("rueidislock", "Go, rueidislock 1.0, two of three keys, as it ships", GO, go("rueidislock")),
    Peer("rueidislock-1", "Go, rueidislock 1.0, one key", GO, go("rueidislock-1")),
    Peer("redis-py-threads", "Python, redis-py 8.1", PYTHON, python("threads")),
    Peer("redis-py-asyncio", "Python, redis-py 8.1", PYTHON, python("asyncio")),
    Peer("node-redlock", "Node, redlock 5 beta, ioredis 5", NODE, ("node", str(HERE / "node/peer.mjs"))),
)
