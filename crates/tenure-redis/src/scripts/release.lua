-- Gives a name up, if it is still this owner's. While it lingers its value matches no owner, so that no late renewal revives it.
--
-- KEYS[1] name
-- ARGV[1] owner     ARGV[2] linger, ms, 0 for none
-- reply   1 given up, now or before   0 not this owner's

local value = redis.call('GET', KEYS[1])
local lingering = 'linger:' .. ARGV[1]
if value == lingering then
  return 1
end
if value ~= ARGV[1] then
  return 0
end
if ARGV[2] == '0' then
  return redis.call('DEL', KEYS[1])
end
-- A server out of memory refuses SET as a script's first write; it does not refuse PEXPIRE, nor any write after that.
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('SET', KEYS[1], lingering, 'PX', ARGV[2])
return 1
