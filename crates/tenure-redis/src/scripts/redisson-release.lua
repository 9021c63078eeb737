-- Releases an RLock of Redisson, if it is still this owner's, and notifies its waiters. The owner of a
-- lock that lingers is nobody's, so no late renewal revives it.
--
-- KEYS[1] name
-- ARGV[1] owner   ARGV[2] 'linger:' and the owner   ARGV[3] linger, ms, 0 for none
-- ARGV[4] channel: no key, so that one who may not use it releases all the same
-- reply   1 released, now or before   0 not this owner's

local name, owner, lingering, linger, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local fields = redis.pcall('HLEN', name)
if type(fields) == 'table' then
  -- A key of another type is nobody's.
  return fields.err:find('WRONGTYPE', 1, true) and 0 or fields
elseif fields ~= 1 or redis.call('HEXISTS', name, owner) == 0 then
  -- Another object of Redisson has more fields.
  return fields == 1 and redis.call('HEXISTS', name, lingering) or 0
end
if linger ~= '0' then
  redis.call('PEXPIRE', name, linger)
  redis.call('HINCRBY', name, lingering, 1)
end
redis.call('HDEL', name, owner)
-- Those who wait look how long it is taken now. One who may not publish releases all the same.
redis.pcall('PUBLISH', channel, '0')
return 1
