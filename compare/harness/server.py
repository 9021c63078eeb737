"""A redis-server for one comparison."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from harness.peers import Failure


def pinned(core):
    """What keeps a program on one core, where there are two."""
    if len(os.sched_getaffinity(0)) < 2 or shutil.which("taskset") is None:
        return []
    return ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[core])]


class Server:
    """Runs until the block ends, without persistence; on the first core, or where the system puts it."""

    def __init__(self, anywhere=False):
        self.prefix = [] if anywhere else pinned(0)
        self.asked = 0

    def __enter__(self):
        program = os.environ.get("TENURE_REDIS_SERVER") or "redis-server"
        if shutil.which(program) is None:
            raise Failure(f"{program} cannot be run; install redis-server or name one in TENURE_REDIS_SERVER")
        self.place = tempfile.TemporaryDirectory(prefix="tenure-compare-")
        where = Path(self.place.name)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [*self.prefix, program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        # A socket in our own folder answers for our own server, even if another process has taken the port meanwhile.
        command += ["--dir", str(where), "--unixsocket", str(where / "s")]
        with open(where / "log", "w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + 10
            while not (where / "s").exists():
                if self.process.poll() is not None or time.monotonic() > until:
                    raise Failure(f"redis-server did not start: {(where / 'log').read_text()[-300:]}")
                time.sleep(0.01)
            about = self.ask("INFO server")
            # A Valkey tells the version of the Redis that it can stand in for as well.
            name, key = ("Valkey", "valkey_version:") if "valkey_version:" in about else ("Redis", "redis_version:")
            self.version = f"{name} {about.split(key)[1].split()[0]}"
        except BaseException:
            # Python does not call __exit__ if __enter__ fails.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.place.cleanup()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def spent(self):
        """CPU time in us, and commands of others so far, those that scripts call among them."""
        ours = self.asked
        facts = dict(line.split(":", 1) for line in self.ask("INFO").splitlines() if ":" in line)
        cpu = sum(float(facts[f"used_cpu_{part}"]) for part in ("sys", "user"))
        return cpu * 1e6, int(facts["total_commands_processed"]) - ours

    def ask(self, line):
        """The answer to one command."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(Path(self.place.name, "s")))
            client.sendall(f"{line}\r\nECHO end-of-answer\r\n".encode())
            self.asked += 2
            answer = b""
            while b"end-of-answer" not in answer:
                more = client.recv(65536)
                if not more:
                    raise Failure(f"redis-server hung up when it was asked {line!r}")
                answer += more
        return answer.decode()


class Servers:
    """Several that know nothing of one another; each as the one."""

    def __init__(self, count, anywhere=False):
        self.servers = [Server(anywhere) for _ in range(count)]

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        with self.stack:
            for server in self.servers:
                self.stack.enter_context(server)
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    @property
    def url(self):
        return "quorum+redis://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def spent(self):
        return tuple(map(sum, zip(*(server.spent() for server in self.servers))))

    def ask(self, line):
        for server in self.servers:
            server.ask(line)
