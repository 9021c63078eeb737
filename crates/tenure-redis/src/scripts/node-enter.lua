-- Reads the memory of the node, after a restart as well. After node.lua.
--
-- The data of another run of the server counts for nothing: it may be older than the leases. That
-- nobody had been granted anything may count: a server without any data says the same.
--
-- KEYS[1] memory   KEYS[2] ends   see node.lua
-- ARGV[1] identity of the server   ARGV[2] identifies a loss that is found now
-- reply   {clock, end, new, 'whole', most}         it votes; the clock and the latest end, which is so many ms away
--         {clock, end, new, 'lost', loss, note}    it does not vote; what clients have noted about the loss

local memory, ends, run, loss = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local now = now_ms()
if redis.call('HGET', memory, 'run') ~= run or not redis.call('ZSCORE', ends, '') then
  local is_new = redis.call('EXISTS', memory, ends) == 0 or redis.call('HGET', memory, 'new') == '1'
  redis.call('UNLINK', memory, ends)
  redis.call('ZADD', ends, 0, '')
  redis.call('HSET', memory, 'run', run, 'loss', loss, 'note', '', 'new', is_new and '1' or '0')
end
-- A server that takes no writes does without.
redis.pcall('ZREMRANGEBYSCORE', ends, 1, digits(now))
local latest = redis.call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
local left = digits(math.max(0, tonumber(latest) - now))
local known = redis.call('HMGET', memory, 'loss', 'note', 'floor', 'most', 'new')
local answer = { digits(now), left, known[5] or '0' }
if known[3] then
  answer[4], answer[5] = 'whole', known[4]
else
  answer[4], answer[5], answer[6] = 'lost', known[1], known[2] or ''
end
return answer
