// node-redlock and redis-semaphore as the other side of tenure's tests, over ioredis.
//
//   side.mjs LIBRARY URL NAME count   takes turns in this folder until it has a file `enough`; prints how many
//   side.mjs LIBRARY URL NAME try     asks once and gives up what it got; exits 75 where it is refused
//   side.mjs LIBRARY URL NAME hold    holds from the file `held` on to the end of its input; prints what the release says
//
// A turn is what tenure_testkit::Counter calls a visit. If the library reports a lost lock, this program says so and exits 79.

import { appendFileSync, closeSync, existsSync, openSync, readFileSync, writeFileSync, writeSync } from "node:fs";
import process from "node:process";
import Redis from "ioredis";
import { Mutex } from "redis-semaphore";
import Redlock, { ExecutionError } from "redlock";

const TTL = 30_000;
const [REFUSED, LOST] = [75, 79];

const [library, url, name, what] = process.argv.slice(2);

class NodeRedlock {
  constructor(client) {
    this.locks = new Redlock([client]);
    // Redlock also reports every try that finds the name taken as an error event.
    this.locks.on("error", () => {});
  }

  async acquire(settings = {}) {
    try {
      this.lock = await this.locks.acquire([name], TTL, settings);
      return true;
    } catch (error) {
      if (error instanceof ExecutionError) return false;
      throw error;
    }
  }

  asks() {
    return this.acquire({ retryCount: 0 });
  }

  async release() {
    try {
      await this.lock.release();
    } catch (error) {
      return error.message;
    }
  }
}

class RedisSemaphore {
  constructor(client) {
    this.client = client;
  }

  async acquire(options = {}) {
    const onLockLost = (error) => leave(LOST, `lost: ${error.message}`);
    this.mutex = new Mutex(this.client, name, { onLockLost, ...options });
    return this.mutex.tryAcquire();
  }

  asks() {
    return this.acquire({ acquireAttemptsLimit: 1 });
  }

  // It does not say whether there was a lock to release.
  async release() {
    await this.mutex.release();
  }
}

const LIBRARIES = { "node-redlock": NodeRedlock, "redis-semaphore": RedisSemaphore };

function leave(code, word) {
  console.log(word);
  process.exit(code);
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

async function visit(id) {
  appendFileSync("log", `enter ${id} -\n`);
  const read = Number(readFileSync("counter", "utf8"));
  await pause(Math.random() * 5);
  const file = openSync("counter", "r+");
  writeSync(file, String(read + 1).padStart(20, "0"));
  closeSync(file);
  appendFileSync("log", `leave ${id}\n`);
}

async function giveUp(lock) {
  const loss = await lock.release();
  if (loss) leave(LOST, `lost: ${loss}`);
}

async function count(lock) {
  let turns = 0;
  while (!existsSync("enough")) {
    // By itself each gives up after a while.
    if (!(await lock.acquire())) continue;
    await visit(`${library}.${process.pid}.${turns}`);
    turns += 1;
    await giveUp(lock);
  }
  leave(0, turns);
}

async function hold(lock) {
  if (!(await lock.acquire())) leave(REFUSED, "refused");
  writeFileSync("held", "held\n");
  for await (const _ of process.stdin);
  await giveUp(lock);
  leave(0, "released");
}

async function askOnce(lock) {
  if (!(await lock.asks())) leave(REFUSED, "refused");
  await giveUp(lock);
  leave(0, "released");
}

const lock = new LIBRARIES[library](new Redis(url));
if (what === "count") await count(lock);
if (what === "hold") await hold(lock);
if (what === "try") await askOnce(lock);
leave(64, `what is ${what}?`);
