"""redis-py's Lock: peer.py threads|asyncio URL cycle|handover|handover-fast TASKS SECONDS prints what harness/peers.py says."""

import asyncio
import json
import os
import sys
import threading
import time

import redis
import redis.asyncio

WARM_UP = 0.3
TTL = 30
# What `Lock` sleeps between tries by itself is 0.1 s.
FAST = {"sleep": 0.001}


class Sheet:
    """What was done in the time that counts."""

    def __init__(self, seconds):
        self.begin = time.perf_counter() + WARM_UP
        self.until = self.begin + seconds
        self.seconds = seconds
        self.spans = []
        self.last = None
        self.failure = None

    def goes_on(self):
        return self.failure is None and time.perf_counter() < self.until

    def count(self, began, ended):
        # Also what began before: slow operations would be missing otherwise.
        if self.begin <= ended <= self.until:
            self.spans.append(ended - began)

    def handed_to(self, who):
        now, before = time.perf_counter(), self.last
        self.last = (who, now)
        # A waiter that takes the name again at once is no hand-over.
        if before is not None and before[0] != who:
            self.count(before[1], now)

    def figures(self, cpu):
        if self.failure is not None:
            raise self.failure
        spans = sorted(self.spans)
        part = lambda part: spans[round((len(spans) - 1) * part)] * 1e6 if spans else None
        return {
            "operations": len(spans),
            "seconds": self.seconds,
            "p50_us": part(0.5),
            "p99_us": part(0.99),
            "client_cpu_us_per_operation": cpu * 1e6 / len(spans) if spans else None,
        }


def cpu_at(moment):
    """The CPU time used so far; tells the harness that the timed part begins or ends."""
    print(moment, flush=True)
    return time.process_time()


def with_threads(url, case, tasks, seconds):
    # The pool's own bound is smaller than the number of tasks.
    shared = redis.Redis.from_url(url, max_connections=tasks)
    options = FAST if case == "handover-fast" else {}
    # All are connected before the time begins.
    clients = [shared if case == "cycle" else redis.Redis.from_url(url) for _ in range(tasks)]
    for client in clients:
        client.ping()
    if case == "cycle":
        pool = shared.connection_pool
        for connection in [pool.get_connection() for _ in range(tasks)]:
            pool.release(connection)
    started, sheets = threading.Barrier(tasks + 1), []

    def work(number):
        started.wait()
        sheet = sheets[0]
        try:
            while sheet.goes_on():
                if case == "cycle":
                    began = time.perf_counter()
                    lock = clients[number].lock(f"compare:cycle:{number}", timeout=TTL)
                    lock.acquire()
                    lock.release()
                    sheet.count(began, time.perf_counter())
                else:
                    lock = clients[number].lock("compare:handover", timeout=TTL, **options)
                    lock.acquire()
                    sheet.handed_to(number)
                    lock.release()
        except Exception as failure:
            sheet.failure = failure

    for number in range(tasks):
        threading.Thread(target=work, args=[number], daemon=True).start()
    # To start so many takes longer than the warm-up does.
    sheet = Sheet(seconds)
    sheets.append(sheet)
    started.wait()
    time.sleep(max(0.0, sheet.begin - time.perf_counter()))
    before = cpu_at("begin")
    time.sleep(max(0.0, sheet.until - time.perf_counter()))
    return sheet.figures(cpu_at("end") - before)


async def with_asyncio(url, case, tasks, seconds):
    shared = redis.asyncio.Redis.from_url(url, max_connections=tasks)
    options = FAST if case == "handover-fast" else {}
    clients = [shared if case == "cycle" else redis.asyncio.Redis.from_url(url) for _ in range(tasks)]
    for client in clients:
        await client.ping()
    if case == "cycle":
        pool = shared.connection_pool
        for connection in [await pool.get_connection() for _ in range(tasks)]:
            await pool.release(connection)
    sheet = Sheet(seconds)

    async def work(number):
        try:
            while sheet.goes_on():
                if case == "cycle":
                    began = time.perf_counter()
                    lock = clients[number].lock(f"compare:cycle:{number}", timeout=TTL)
                    await lock.acquire()
                    await lock.release()
                    sheet.count(began, time.perf_counter())
                else:
                    lock = clients[number].lock("compare:handover", timeout=TTL, **options)
                    await lock.acquire()
                    sheet.handed_to(number)
                    await lock.release()
        except Exception as failure:
            sheet.failure = failure

    working = [asyncio.create_task(work(number)) for number in range(tasks)]
    await asyncio.sleep(sheet.begin - time.perf_counter())
    before = cpu_at("begin")
    await asyncio.sleep(sheet.until - time.perf_counter())
    figures = sheet.figures(cpu_at("end") - before)
    del working
    return figures


def main():
    way, url, case, tasks, seconds = sys.argv[1:]
    if way == "threads":
        figures = with_threads(url, case, int(tasks), float(seconds))
    else:
        figures = asyncio.run(told(with_asyncio(url, case, int(tasks), float(seconds))))
    tell(figures)


async def told(work):
    # Waiters that are still there are left where they are.
    tell(await work)


def tell(figures):
    print(json.dumps(figures), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
