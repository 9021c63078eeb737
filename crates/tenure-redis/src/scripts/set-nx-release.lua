-- Releases a key that holds an owner, if it is still this one's. The value of a key that lingers
-- matches no owner, so no late renewal revives it.
--
-- KEYS[1] name
-- ARGV[1] owner   ARGV[2] linger, ms, 0 for none   ARGV[3] how waiters of a library are woken: message,
-- entry or none   ARGV[4] the channel or list for it. It is no key, so that one who may not use it
-- releases all the same
-- reply   1 released, now or before   0 not this owner's

local name, owner, linger, wakes, beside = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
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
  redis.call('DEL', name)
  -- One who may not do this releases all the same.
  if wakes == 'message' then
    redis.pcall('PUBLISH', beside, name)
  elseif wakes == 'entry' then
    -- There is one at most, and it stays for a second: so the library has it.
    redis.pcall('DEL', beside)
    redis.pcall('LPUSH', beside, '1')
    redis.pcall('PEXPIRE', beside, '1000')
  end
  return 1
end
-- A lock that lingers is not free: nobody is woken.
-- The first write must be one that a server out of memory allows, as PEXPIRE. Then it allows SET.
redis.call('PEXPIRE', name, linger)
redis.call('SET', name, lingering, 'PX', linger)
return 1
