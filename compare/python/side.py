"""redis-py, pottery and python-redis-lock as the other side of tenure's tests.

    side.py LIBRARY URL NAME count   takes turns in this folder until it has a file `enough`; prints how many
    side.py LIBRARY URL NAME try     asks once and gives up what it got; exits 75 where it is refused
    side.py LIBRARY URL NAME hold    holds from the file `held` on to the end of its input; prints what the release says

A turn is what tenure_testkit::Counter calls a visit. If the library reports a lost lock, this program says so and exits 79.
"""

import os
import random
import sys
import time

import pottery
import redis
import redis_lock

REFUSED, LOST = 75, 79


def redis_py(client, name):
    # By itself it takes a lock that never ends.
    return client.lock(name, timeout=30)


def redlock(client, name):
    return pottery.Redlock(key=name, masters={client}, raise_on_redis_errors=True)


def signalled(client, name):
    return redis_lock.Lock(client, name, expire=30)


LIBRARIES = {"redis-py": redis_py, "pottery": redlock, "python-redis-lock": signalled}
LOSSES = (redis.exceptions.LockError, pottery.ReleaseUnlockedLock, redis_lock.NotAcquired)


def append(line):
    with open("log", "ab", buffering=0) as log:
        log.write(f"{line}\n".encode())


def visit(who):
    append(f"enter {who} -")
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
        visit(f"{library}.{os.getpid()}.{turns}")
        turns += 1
        lock.release()
    print(turns)


def hold(lock):
    lock.acquire()
    with open("held", "w") as held:
        held.write("held\n")
    sys.stdin.read()
    lock.release()
    print("released")


def main():
    library, url, name, what = sys.argv[1:]
    lock = LIBRARIES[library](redis.Redis.from_url(url), name)
    try:
        if what == "count":
            count(library, lock)
        elif what == "hold":
            hold(lock)
        elif what == "try":
            if not lock.acquire(blocking=False):
                return REFUSED
            lock.release()
        else:
            return f"what is {what}?"
    except LOSSES as loss:
        print(f"lost: {loss}")
        return LOST


if __name__ == "__main__":
    sys.exit(main())
