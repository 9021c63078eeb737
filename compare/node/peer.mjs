// node-redlock over ioredis: peer.mjs URL cycle|handover|handover-fast TASKS SECONDS prints what harness/peers.py says.

import process from "node:process";
import Redis from "ioredis";
import Redlock from "redlock";

const WARM_UP = 300;
const TTL = 30_000;
// By itself it tries ten times, 200 ms apart with 100 ms of jitter; then we ask again.
const FAST = { retryCount: -1, retryDelay: 1, retryJitter: 1 };

const [url, kind, tasks, seconds] = process.argv.slice(2);
const fast = kind === "handover-fast";
const begin = performance.now() + WARM_UP;
const until = begin + Number(seconds) * 1000;
const spans = [];
let last;

function connected() {
  const client = new Redis(url);
  const locks = new Redlock([client], fast ? FAST : {});
  // Redlock also reports every try that finds the name taken as an error event.
  locks.on("error", () => {});
  return locks;
}

function count(began, ended) {
  // Also what began before: slow operations would be missing otherwise.
  if (begin <= ended && ended <= until) spans.push(ended - began);
}

async function cycles(locks, number) {
  while (performance.now() < until) {
    const began = performance.now();
    const lock = await locks.acquire([`compare:cycle:${number}`], TTL);
    await lock.release();
    count(began, performance.now());
  }
}

async function acquired(locks) {
  for (;;) {
    try {
      return await locks.acquire(["compare:handover"], TTL);
    } catch (error) {
      if (error.name !== "ExecutionError") throw error;
    }
  }
}

async function turns(locks, number) {
  while (performance.now() < until) {
    const lock = await acquired(locks);
    const now = performance.now();
    // A waiter that takes the name again at once is no hand-over.
    if (last !== undefined && last.number !== number) count(last.at, now);
    last = { number, at: now };
    await lock.release();
  }
}

// Also tells the harness that the timed part begins or ends.
function usedAt(moment) {
  console.log(moment);
  const { user, system } = process.cpuUsage();
  return user + system;
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

const shared = connected();
for (let number = 0; number < Number(tasks); number += 1) {
  const work = kind === "cycle" ? cycles(shared, number) : turns(connected(), number);
  work.catch((error) => {
    console.error(String(error));
    process.exit(1);
  });
}
await pause(begin - performance.now());
const before = usedAt("begin");
await pause(until - performance.now());
const cpu = usedAt("end") - before;
spans.sort((a, b) => a - b);
const part = (of) => (spans.length > 0 ? spans[Math.round((spans.length - 1) * of)] * 1000 : null);
console.log(
  JSON.stringify({
    operations: spans.length,
    seconds: Number(seconds),
    p50_us: part(0.5),
    p99_us: part(0.99),
    client_cpu_us_per_operation: spans.length > 0 ? cpu / spans.length : null,
  }),
);
process.exit(0);
