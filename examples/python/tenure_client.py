"""A client of tenure's locks on one Redis server, made from docs/wire.md: a mutex with a queue, hand-over and fence.

    lock = Lock("redis://cache", "invoice/42")
    if lock.acquire(timeout=10):
        try:
            ...               # send lock.fence with each write, and call lock.check() before each step
        finally:
            lock.release()    # raises Lost or Unknown

It needs redis-py and the folder of the scripts, and knows no clusters. A lock does not survive a fork.
"""

import os
import random
import re
import secrets
import socket
import threading
import time
from binascii import crc_hqx
from hashlib import sha1
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SCRIPTS = Path(__file__).resolve().parents[2] / "crates/tenure-redis/src/scripts"
HANDOFF_TTL, ENTRY_GRACE, HEARTBEAT, POLL = 1.5, 1.0, 1.0, 0.1
DRIFT, GRAIN, MAX_COUNTER = 0.01, 0.002, 2**53 - 1
UNANSWERED = (redis.ConnectionError, redis.TimeoutError)
RESERVED = re.compile(r"\{[@-O]{4}\}:[qpsogh]:|tenure:(fence|node)$")
GENERATED = re.compile(rb"([^\x00-\x1f\x7f]*\.)[0-9a-f]{32}")

ABOUT_A_NAME = ["keys.lua", "fence.lua", "note.lua", "holders.lua", "queue.lua"]
FREE_FIRST = "local done = release_free(KEYS, ARGV)\nif done then return done end\n"
PARTS = {
    "acquire": [*ABOUT_A_NAME, "acquire.lua", "return acquire(KEYS, ARGV)"],
    "release": ["release-free.lua", FREE_FIRST, *ABOUT_A_NAME, "release.lua", "return release(KEYS, ARGV)"],
    "renew": ["renew.lua"],
}
# The largest counter that replies have shown, by server and prefix.
seen = {}


class Lost(Exception):
    """The lease has ended, by the clock of this host or as the server says. Others may hold the name."""


class Unknown(Exception):
    """No answer came. The name is free within its ttl."""


def clock():
    # It goes on while the machine sleeps, if the system has such a clock.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def text_of(script, folder=SCRIPTS):
    return "".join(Path(folder, part).read_text() + "\n" if part.endswith(".lua") else part for part in PARTS[script]).encode()


def slot(key):
    tagged = re.match(rb"[^{]*\{([^}]+)\}", key)
    return crc_hqx(tagged[1] if tagged else key, 0) & 0x3FFF


def tag_of(key):
    """The smallest number of 16 bits that has the slot of the key, spelled in @ to O with its lowest four bits first."""
    wanted = slot(key)
    spelled = (bytes(0x40 | number >> shift & 15 for shift in (0, 4, 8, 12)) for number in range(1 << 16))
    return next(text for text in spelled if crc_hqx(text, 0) & 0x3FFF == wanted)


class Connection:
    """Repeats nothing by itself. After a failure the next link has the server end it first: nothing runs late."""
    def __init__(self, url, timeout):
        retry = Retry(NoBackoff(), 0)
        self.pool = redis.ConnectionPool.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=retry)
        self.mutex, self.link, self.identity, self.predecessors = threading.Lock(), None, None, []

    def call(self, text, keys, args):
        with self.mutex:
            try:
                if not self.link:
                    self._connect()
                try:
                    return self._ask("EVALSHA", sha1(text).hexdigest(), len(keys), *keys, *args)
                except redis.exceptions.NoScriptError:
                    return self._ask("EVAL", text, len(keys), *keys, *args)
            except BaseException as error:
                # After an error in words the connection is as good as before.
                if not (isinstance(error, redis.ResponseError) and self.identity):
                    self._drop()
                raise

    def _ask(self, *words):
        self.link.send_command(*words)
        return self.link.read_response()

    def _connect(self):
        self.identity, self.link = None, self.pool.make_connection()
        self.link.connect()
        info = self._ask("CLIENT", "INFO").decode()
        for number, address in self.predecessors:
            self._ask("CLIENT", "KILL", "ID", number, "ADDR", address)
        self.predecessors = []
        self.identity = re.match(r"id=(\d+)", info)[1], info.partition(" addr=")[2].partition(" laddr=")[0]

    def _drop(self):
        self.predecessors += [self.identity] if self.identity else []
        if self.link:
            self.link.disconnect()
        self.link = self.identity = None


class Lock:
    """A mutex, for one thread at a time. Any thread may `check` it."""
    def __init__(self, url, name, ttl=30.0, label=None, prefix="", watchdog=True, scripts=SCRIPTS):
        label = f"{socket.gethostname()}.{os.getpid()}" if label is None else label
        is_odd = any(ord(char) < 32 or 127 <= ord(char) < 160 for char in name + label)
        if is_odd or not 1 <= len(name.encode()) <= 1024 or RESERVED.match(name) or len(label.encode()) > 128 or ttl < 0.05:
            raise ValueError("this name, label or ttl cannot be used")
        self.ms, self.label, self.prefix, self.watchdog = int(ttl * 1000), label.encode() + b".", prefix.encode(), watchdog
        self.ttl, self.known, key = self.ms / 1000, (url, prefix), (prefix + name).encode()
        self.validity, self.timeout = self.ttl * (1 - DRIFT) - GRAIN - self.ttl / 10, min(1.0, self.ttl / 6)
        beside = [self.prefix + b"{" + tag_of(key) + b"}:" + what + b":" + name.encode() for what in (b"q", b"p", b"s")]
        self.keys = [key, *beside[:2], self.prefix + b"tenure:fence", beside[2]]
        self.texts = {script: text_of(script, scripts) for script in PARTS}
        self.connection, self.ears, self.channel = Connection(url, self.timeout), None, b"-"
        self.token = self.fence = self.keeper = None
        self.valid_until, self.lost, self.stop = 0.0, threading.Event(), threading.Event()

    def acquire(self, timeout=None):
        """Returns whether the lock is held, after `timeout` seconds at most. 0 asks once, None waits for ever."""
        if self.token:
            raise RuntimeError("it is held")
        end = float("inf") if timeout is None else clock() + timeout
        token, word, dirty = self._new_token(), "none", True
        try:
            while True:
                sent_at = clock()
                try:
                    granted, counter, *busy = self._ask(token, word)
                except UNANSWERED as error:
                    # It may have been applied, so the same token is sent again.
                    if clock() >= end or isinstance(error, redis.AuthenticationError):
                        raise
                    self._wait(token, self.timeout * random.uniform(0.2, 0.4), end)
                    continue
                if granted:
                    if self._hold(token, counter, sent_at):
                        return True
                    # Too late to be valid. A token that was released is never sent again.
                    self._give_back(token)
                    token, word = self._new_token(), "join"
                    continue
                position, *holder = busy
                if clock() >= end:
                    dirty = position >= 0
                    return False
                if position >= 0:
                    word = "keep"
                    self._wait(token, self._pause_after(holder), end)
                    continue
                # It was only tried, or its entry has lapsed, or was served and nobody came. Nothing is left of the token.
                token, word = self._new_token(), "join"
                self._listen()
        except BaseException:
            self.token = None
            self.stop.set()
            raise
        finally:
            self._deafen()
            if dirty and not self.token:
                self._give_back(token)

    def check(self):
        """Raises Lost if the lease has ended by the clock of this host. It has not ended yet at the server."""
        if self.lost.is_set() or clock() >= self.valid_until:
            self.lost.set()
            raise Lost(self.keys[0].decode())

    def renew(self):
        """Prolongs the lease. The watchdog does it after each third of the ttl."""
        self.check()
        token, sent_at = self.token, clock()
        if self.connection.call(self.texts["renew"], self.keys[:1], [token, self.ms]) != [1]:
            self.lost.set()
        # An answer that comes after the end changes nothing.
        self.check()
        self.valid_until = max(self.valid_until, sent_at + self.validity)

    def release(self):
        """Gives the lock to the next waiter. Raises Lost if it was gone before, Unknown if nobody knows."""
        if not self.token:
            raise RuntimeError("it is not held")
        self.stop.set()
        if self.keeper:
            self.keeper.join()
        was_lost, token, self.valid_until = self.lost.is_set() or clock() >= self.valid_until, self.token, 0.0
        self.token = self.fence = self.keeper = None
        for first in (True, False):
            try:
                released = self._release(token)
            except UNANSWERED:
                continue
            if released and not was_lost:
                return
            raise Lost(self.keys[0].decode()) if first or was_lost else Unknown("the second release found nothing")
        self._give_back(token)
        raise Unknown("no release had an answer")

    def _new_token(self):
        return self.label + secrets.token_hex(16).encode()

    def _ask(self, token, word):
        asked, handoff_ttl = seen.get(self.known, 0), min(HANDOFF_TTL, self.ttl)
        entry = [int((handoff_ttl + ENTRY_GRACE) * 1000), int(handoff_ttl * 1000), self.channel]
        args = [1, asked, token, self.ms, 1, 1, b"", word, *entry, 1]
        granted, counter, *busy = self.connection.call(self.texts["acquire"], self.keys, args)
        seen[self.known] = max(seen.get(self.known, 0), int(counter))
        return [granted, int(counter), *busy]

    def _hold(self, token, counter, sent_at):
        if not 0 < counter <= MAX_COUNTER:
            raise ValueError(f"no fence can be made of the grant counter {counter}")
        self.valid_until = sent_at + self.validity
        if clock() >= self.valid_until:
            return False
        # A grant has 1024 fences, for hand-overs within a process. This client makes none.
        self.token, self.fence, self.lost, self.stop = token, counter * 1024, threading.Event(), threading.Event()
        if self.watchdog:
            self.keeper = threading.Thread(target=self._keep, args=(sent_at + self.ttl / 3,), daemon=True)
            self.keeper.start()
        return True

    def _keep(self, renew_at):
        # In short steps: the clock of a wait may stand still while the machine sleeps.
        while not self.stop.wait(min(1.0, max(0.0, min(renew_at, self.valid_until) - clock()))):
            try:
                self.check()
                if clock() >= renew_at:
                    renew_at = clock() + self.ttl / 3
                    self.renew()
            except Lost:
                return
            except redis.RedisError:
                renew_at = clock() + self.timeout / 4

    def _release(self, token):
        return self.connection.call(self.texts["release"], self.keys, [1, seen.get(self.known, 0), token, 0]) == 1

    def _give_back(self, token, until=None):
        """Releases what a token may have left. If there is no answer, in the background, until nothing can be left."""
        while until is None or clock() < until:
            try:
                return self._release(token)
            except redis.RedisError:
                if until is None:
                    until = clock() + max(self.ttl, 2 * HANDOFF_TTL + ENTRY_GRACE)
                    return threading.Thread(target=self._give_back, args=(token, until), daemon=True).start()
                time.sleep(self.timeout)

    def _listen(self):
        """Subscribes, before a queue entry names the channel: without a listener the entry is passed over."""
        self._deafen()
        channel = self.prefix + b"tenure:wake:" + secrets.token_hex(8).encode()
        try:
            self.ears = self.connection.pool.make_connection()
            self.ears.connect()
            self.ears.send_command("SUBSCRIBE", channel)
            self.ears.read_response()
            self.channel = channel
        except redis.RedisError:
            self._deafen()

    def _deafen(self):
        if self.ears:
            self.ears.disconnect()
        self.ears, self.channel = None, b"-"

    def _pause_after(self, holder):
        # A holder of another library notifies nobody, and a lease that nobody renews ends at a known time.
        notified = self.ears and (not holder or GENERATED.fullmatch(holder[0]))
        pause = random.uniform(1, 1.2) * (HEARTBEAT if notified else POLL)
        return min(pause, (holder[1] + 1) / 1000) if holder and holder[1] >= 0 else pause

    def _wait(self, token, pause, end):
        """Waits for a push to the token. It is a reason to ask, and no grant."""
        until = min(clock() + pause, end)
        try:
            while self.ears and self.ears.can_read(max(0.0, until - clock())):
                if self.ears.read_response()[-1].partition(b" ")[2] == token or clock() >= until:
                    return
        except redis.RedisError:
            return self._listen()  # A push may have been missed: ask at once.
        if not self.ears:
            time.sleep(max(0.0, until - clock()))
