-- Acquires an RFairLock of Redisson, or waits for it in its queue. After redisson-lock.lua and
-- redisson-queue.lua.
--
-- KEYS[1] name   KEYS[2] token   KEYS[3] queue   KEYS[4] when waiters are due
-- KEYS[5] as KEYS[3] of redisson-acquire.lua
-- ARGV[1] owner   ARGV[2] ttl, ms
-- ARGV[3] '1' if finding the owner in place is success: it was generated for this attempt
-- ARGV[4] the owner to take over from, '' for none
-- ARGV[5] about the queue: 'none', 'join' or 'keep', a heartbeat
-- ARGV[6] entry_ttl, ms   ARGV[7] handoff_ttl, ms   ARGV[8] channel   ARGV[9] publish with
-- reply   {1, token}                             granted, for the full ttl at least; token is a string
--         {0, position}                          free, but others come first, or `from` does not hold it
--         {0, owner, ttl in ms, mode, position}  busy; ttl -1: no end; mode of an RReadWriteLock, else ''
--         position is -1 without an entry

local name, token, queue, dues, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[8]
local owner, ttl, generated, from = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
-- One who takes over has no place to wait for. A supplied token may be another client's.
local enqueue = generated and from == '' and ARGV[5] or 'none'
serve(name, queue, dues, channel)
local fields = redis.call('HLEN', name)
local is_next = redis.call('LLEN', queue) == 0 and enqueue ~= 'keep'
local holds = redis.call('HEXISTS', name, owner) == 1
local reply = { 0 }
if fields > 0 or from ~= '' or is_next then
  reply = acquire_lock(name, token, owner, ttl, generated, from)
  -- It may be an error, and in an answer that is none the first is 1 or 0.
  if reply[1] ~= 0 then
    return reply
  end
end
local position = enqueue ~= 'none' and not holds and redis.call('LPOS', queue, owner)
local handoff_ttl, entry_ttl = ARGV[7], ARGV[6]
if position and enqueue == 'keep' then
  handoff_ttl, entry_ttl = ttls_of(name, owner)
end
if position and not handoff_ttl then
  -- It came too late.
  drop(name, queue, dues, owner)
  position = nil
elseif position or enqueue == 'join' and not holds then
  -- Its turn may come when all before it have had theirs.
  local before = position or redis.call('LLEN', queue)
  local due = string.format('%.0f', now_ms() + math.max(0, redis.call('PTTL', name)) + (before + 1) * WAIT)
  -- First what a user may have no right to: a queue entry without it is dropped by the next who looks.
  redis.call('SET', heartbeat_key(name, owner), handoff_ttl .. ':' .. entry_ttl, 'PX', entry_ttl)
  redis.call('ZADD', dues, 'GT', due, owner)
  if not position then
    redis.call('RPUSH', queue, owner)
    position = before
  end
end
reply[#reply + 1] = position or -1
return reply
