-- Releases a key that holds an owner, if it is still this one's. The value of a key that lingers
-- matches no owner, so no late renewal revives it.
--
-- KEYS[1] name
-- ARGV[1] owner   ARGV[2] linger, ms, 0 for none
-- reply   1 released, now or before   0 not this owner's

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
-- The first write must be one that a server out of memory allows, as PEXPIRE. Then it allows SET.
redis.call('PEXPIRE', name, linger)
redis.call('SET', name, lingering, 'PX', linger)
return 1
