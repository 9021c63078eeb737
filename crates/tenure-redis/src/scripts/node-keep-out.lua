-- Has a node that has lost its data wait before it votes. After node.lua.
--
-- KEYS[1] memory   see node.lua
-- ARGV[1] the loss   ARGV[2] wait, ms
-- reply   1, or 0 if it is another loss or the node votes

local known = redis.call('HMGET', KEYS[1], 'loss', 'floor')
if known[1] ~= ARGV[1] or known[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'from', digits(now_ms() + tonumber(ARGV[2])))
return 1
