-- Reads the memory of the node, after a restart as well. After node.lua.
--
-- The data of another run of the server counts for nothing: it may be older than the leases.
--
-- KEYS[1] memory   KEYS[2] ends   see node.lua
-- ARGV[1] identity of the server   ARGV[2] identifies a loss that is found now
-- reply   {'whole', end, new, most}            it votes; the latest end is so many ms away
--         {'lost', end, new, loss, since}      nobody has said how long it has to wait; found so many ms ago
--         {'waiting', end, new, loss, left}    it waits, ms

local memory, ends, run, loss = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local now = now_ms()
if redis.call('HGET', memory, 'run') ~= run or not redis.call('ZSCORE', ends, '') then
  local is_new = redis.call('EXISTS', memory, ends) == 0
  redis.call('UNLINK', memory, ends)
  redis.call('ZADD', ends, 0, '')
  redis.call('HSET', memory, 'run', run, 'loss', loss, 'lost', digits(now), 'new', is_new and '1' or '0')
end
-- A server that takes no writes does without.
redis.pcall('ZREMRANGEBYSCORE', ends, 1, digits(now))
local latest = redis.call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
local left = digits(math.max(0, tonumber(latest) - now))
local known = redis.call('HMGET', memory, 'loss', 'from', 'floor', 'most', 'lost', 'new')
local new = known[6] or '0'
if known[3] then
  return { 'whole', left, new, known[4] }
elseif known[2] then
  return { 'waiting', left, new, known[1], digits(math.max(0, tonumber(known[2]) - now)) }
end
return { 'lost', left, new, known[1], digits(math.max(0, now - tonumber(known[5]))) }
