-- Has a node that has lost its data wait before it votes. After node.lua.
--
-- KEYS[1] memory   see node.lua
-- ARGV[1] the loss   ARGV[2] wait, ms
-- reply   1, or 0 if it is another loss or the node votes

local known = redis.call('HMGET', KEYS[1], 'loss', 'floor')
if known[1] ~= ARGV[1] or known[2] then
  return 0
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], 'from', digits(now + tonumber(ARGV[2])))
return 1
