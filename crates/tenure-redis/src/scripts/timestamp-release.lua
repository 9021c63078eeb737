-- Releases a key that holds a timestamp value, if it is still this owner's. After timestamp.lua.
--
-- KEYS[1] name    KEYS[2] its owner
-- ARGV[1] unit    ARGV[2] owner   ARGV[3] linger, ms, 0 for none
-- reply   1 released, now or before   0 not this owner's

local name, beside, owner, linger = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local lingering = 'linger:' .. owner
-- A value that is no lock is nobody's.
local who, _, value = read(name, beside)
if who == lingering then
  return 1
elseif not who or who ~= owner then
  return 0
elseif linger == '0' then
  redis.call('DEL', name, beside)
  return 1
end
-- The first write must be one that a server out of memory allows.
redis.call('DEL', beside)
put(name, beside, lingering, linger, value)
return 1
