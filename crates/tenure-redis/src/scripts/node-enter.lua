-- Reads the memory of the node, after a restart as well. After node.lua.
--
-- KEYS[1] memory   see node.lua
-- ARGV[1] run id of the server   ARGV[2] '1' if each write is on disk before its reply
-- ARGV[3] identifies a loss that is found now
-- reply   {'whole', ttl, most}      it votes
--         {'lost', loss}            nobody has said how long it has to wait
--         {'waiting', loss, left}   it waits, ms

local memory, run, always, loss = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local known = redis.call('HMGET', memory, 'run', 'always')
if known[1] and (known[1] == run or known[2] == '1') then
  if known[1] ~= run or known[2] ~= always and always == '0' then
    redis.call('HSET', memory, 'run', run, 'always', always)
  end
else
  redis.call('UNLINK', memory)
  redis.call('HSET', memory, 'run', run, 'always', always, 'loss', loss)
end
local stands = redis.call('HMGET', memory, 'loss', 'from', 'floor', 'ttl', 'most')
if stands[3] then
  return { 'whole', stands[4], stands[5] }
elseif stands[2] then
  return { 'waiting', stands[1], digits(math.max(0, tonumber(stands[2]) - now_ms())) }
end
return { 'lost', stands[1] }
