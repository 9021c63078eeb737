-- Releases an RFairLock of Redisson, or a place in its queue, if it is still this owner's, and serves
-- the waiters. After redisson-unlock.lua and redisson-queue.lua.
--
-- KEYS[1] name   KEYS[2] queue   KEYS[3] when waiters are due
-- KEYS[4] as KEYS[3] of redisson-acquire.lua
-- ARGV[1] owner   ARGV[2] 'linger:' and the owner   ARGV[3] linger, ms, 0 for none
-- ARGV[4] channel   ARGV[5] publish with
-- reply   1 released, now or before   0 not this owner's

local name, queue, dues, channel = KEYS[1], KEYS[2], KEYS[3], ARGV[4]
local owner, lingering, linger = ARGV[1], ARGV[2], ARGV[3]
local position = redis.pcall('LPOS', queue, owner)
if type(position) == 'number' then
  leave(name, queue, dues, owner, position)
  pcall(serve, name, queue, dues, channel)
  return 1
end
local reply, done = unlock(name, owner, lingering, linger)
if done then
  -- Where the queue cannot be used the lock is released all the same.
  pcall(serve, name, queue, dues, channel)
end
return reply
