-- Has a node remember that leases may last for this long. After node.lua.
--
-- KEYS[1] memory   see node.lua
-- ARGV[1] ttl, ms

local known = redis.call('HGET', KEYS[1], 'ttl')
if known and tonumber(known) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'ttl', ARGV[1])
end
return 1
