"""redis-py, pottery, python-redis-lock and the client of examples/python as the other side of tenure's tests.

    side.py LIBRARY URL NAME count   takes turns in this folder until it has a file `enough`; prints how many
    side.py LIBRARY URL NAME try     asks once and gives up what it got; exits 75 where it is refused
    side.py LIBRARY URL NAME hold    holds from the file `held` on to the end of its input; prints what the release says
    side.py wire URL NAME turn       waits $WAIT seconds, adds $TURN and its fence to the file `order`, and releases
    side.py wire URL NAME watch      holds from the file `held` on until it notices a loss; says so in the file `lost`

A turn is what tenure_testkit::Counter calls a visit. If the library reports a lost lock, this program says so and exits 79.
"""

import os
import random
import sys
import time
from pathlib import Path

import pottery
import redis
import redis_lock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/python"))
import tenure_client

REFUSED, LOST, UNKNOWN = 75, 79, 69


class Wire(tenure_client.Lock):
    """The client of examples/python, called as the others are."""

    def acquire(self, blocking=True):
        return super().acquire(float(os.environ.get("WAIT", "inf")) if blocking else 0)


def redis_py(url, name):
    # By itself it takes a lock that never ends.
    return redis.Redis.from_url(url).lock(name, timeout=30)


def redlock(url, name):
    return pottery.Redlock(key=name, masters={redis.Redis.from_url(url)}, raise_on_redis_errors=True)


def signalled(url, name):
    return redis_lock.Lock(redis.Redis.from_url(url), name, expire=30)


def wire(url, name):
    return Wire(url, name, ttl=float(os.environ.get("TTL", 30)))


LIBRARIES = {"redis-py": redis_py, "pottery": redlock, "python-redis-lock": signalled, "wire": wire}
LOSSES = (redis.exceptions.LockError, pottery.ReleaseUnlockedLock, redis_lock.NotAcquired, tenure_client.Lost)


def append(line, name="log"):
    with open(name, "ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def visit(who, fence):
    append(f"enter {who} {fence}")
    with open("counter") as counter:
        read = int(counter.read())
    time.sleep(random.uniform(0, 0.005))
    with open("counter", "r+b", buffering=0) as counter:
        counter.write(f"{read + 1:020}".encode())
    append(f"leave {who}")


def count(library, lock):
    turns = 0
    while not os.path.exists("enough"):
        lock.acquire()
        visit(f"{library}.{os.getpid()}.{turns}", getattr(lock, "fence", "-"))
        turns += 1
        try:
            lock.release()
        except tenure_client.Unknown:
            # Nobody answered in time. The turn was had.
            pass
    print(turns)


def hold(lock):
    lock.acquire()
    append("held", "held")
    sys.stdin.read()
    lock.release()
    print("released")


def turn(lock):
    if not lock.acquire():
        return REFUSED
    append(f"{os.environ['TURN']} {lock.fence}", "order")
    lock.release()


def watch(lock):
    lock.acquire()
    append("held", "held")
    lock.lost.wait()
    append("lost", "lost")
    lock.release()


def main():
    library, url, name, what = sys.argv[1:]
    lock = LIBRARIES[library](url, name)
    try:
        if what == "count":
            count(library, lock)
        elif what == "hold":
            hold(lock)
        elif what == "try":
            if not lock.acquire(blocking=False):
                return REFUSED
            lock.release()
        elif what == "turn":
            return turn(lock)
        elif what == "watch":
            watch(lock)
        else:
            return f"what is {what}?"
    except LOSSES as loss:
        print(f"lost: {loss}")
        return LOST
    except tenure_client.Unknown as unknown:
        print(f"unknown: {unknown}")
        return UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
