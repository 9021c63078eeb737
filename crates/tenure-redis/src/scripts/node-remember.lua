-- Has a node remember that leases may last for this long.
--
-- KEYS[1] memory   see node.lua
-- ARGV[1] ttl, ms   ARGV[2] run id of the server that the client knows
-- reply   1, or 0 if nobody has entered this run of the server

local known = redis.call('HMGET', KEYS[1], 'run', 'ttl')
if known[1] ~= ARGV[2] then
  return 0
end
if known[2] and tonumber(known[2]) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'ttl', ARGV[1])
end
return 1
