-- Releases an RLock of Redisson, if it is still this owner's, and notifies its waiters. The owner of a
-- lock that lingers is nobody's, so no late renewal revives it.
--
-- KEYS[1] name   KEYS[2] channel
-- ARGV[1] owner   ARGV[2] 'linger:' and the owner   ARGV[3] linger, ms, 0 for none
-- reply   1 released, now or before   0 not this owner's

local name, channel, owner, lingering, linger = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local held = redis.pcall('HEXISTS', name, owner)
if type(held) == 'table' then
  -- A key of another type is nobody's.
  return held.err:find('WRONGTYPE', 1, true) and 0 or held
elseif held == 0 then
  return redis.call('HEXISTS', name, lingering)
elseif linger == '0' then
  redis.call('DEL', name)
else
  redis.call('PEXPIRE', name, linger)
  redis.call('HSET', name, lingering, '1')
  redis.call('HDEL', name, owner)
end
-- Those who wait look how long it is taken now. One who may not publish releases all the same.
redis.pcall('PUBLISH', channel, '0')
return 1
