-- Gives up a key that holds an owner, if it is still this one's. While it lingers its value matches no owner, so that no late renewal
-- revives it.
--
-- KEYS[1] name
-- ARGV[1] owner   ARGV[2] linger, ms, 0 for none
-- reply   1 given up, now or before   0 not this owner's

local name, owner, linger = KEYS[1], ARGV[1], ARGV[2]
local lingering = 'linger:' .. owner
local value = redis.pcall('GET', name)
-- A key of another type is nobody's.
if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then
  return value
elseif value == lingering then
  return 1
elseif value ~= owner then
  return 0
elseif linger == '0' then
  return redis.call('DEL', name)
end
-- A server out of memory refuses SET as a script's first write; it does not refuse PEXPIRE, nor any write after that.
redis.call('PEXPIRE', name, linger)
redis.call('SET', name, lingering, 'PX', linger)
return 1
