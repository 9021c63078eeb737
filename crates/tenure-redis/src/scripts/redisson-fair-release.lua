-- Releases an RFairLock of Redisson, or a place in its queue, if it is still this owner's, and serves
-- the waiters. After redisson-queue.lua.
--
-- KEYS[1] name   KEYS[2] queue   KEYS[3] when waiters are due
-- ARGV[1] owner   ARGV[2] 'linger:' and the owner   ARGV[3] linger, ms, 0 for none
-- ARGV[4] channel
-- reply   1 released, now or before   0 not this owner's

local name, queue, dues, channel = KEYS[1], KEYS[2], KEYS[3], ARGV[4]
local owner, lingering, linger = ARGV[1], ARGV[2], ARGV[3]
local position = redis.pcall('LPOS', queue, owner)
if type(position) == 'number' then
  leave(name, queue, dues, owner, position)
  pcall(serve, name, queue, dues, channel)
  return 1
end
-- A key of another type, or another object of Redisson, is nobody's.
if redis.call('TYPE', name).ok ~= 'hash' or redis.call('HLEN', name) ~= 1 then
  return 0
elseif redis.call('HEXISTS', name, owner) == 0 then
  return redis.call('HEXISTS', name, lingering)
end
if linger ~= '0' then
  redis.call('PEXPIRE', name, linger)
  redis.call('HINCRBY', name, lingering, 1)
end
redis.call('HDEL', name, owner)
-- Where the queue cannot be used the lock is released all the same.
pcall(serve, name, queue, dues, channel)
return 1
