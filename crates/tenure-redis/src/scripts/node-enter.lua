-- Reads the memory of the node, after a restart as well. After node-ends and node.lua.
--
-- The data of another run of the server counts for nothing, because it may be older than the leases. Only that nobody
-- had been granted anything counts, because a server without any data says the same.
--
-- KEYS[1] memory   KEYS[2] ends   see node.lua
-- ARGV[1] run id of the server   ARGV[2] identifies a loss that is found now
-- ARGV[3] '/' and what the server says of the time when it was a replica: then it had the data of another. A server
--         that was a master for long enough says nothing any more
-- reply   {clock, end, 'whole', most, beside}           it votes; the clock and the latest end, which is so many ms away, and
--                                                       the losses of the others that were new when it began to vote
--         {clock, end, 'lost', loss, note, new, copy}   it does not vote; what clients have noted about the loss, and the
--                                                       latest end in the data with which it came back, for a person

-- Ms until the latest end that is noted.
local function latest_end(ends, now)
  local latest = redis.pcall('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
  return math.max(0, (tonumber(latest) or 0) - now)
end

local memory, ends, run, loss = KEYS[1], KEYS[2], ARGV[1] .. ARGV[3], ARGV[2]
local now, known = now_ms(), redis.call('HGET', memory, 'run') or ''
local has_forgotten = ARGV[3] == '/' and known:sub(1, #run) == run
if known ~= run and not has_forgotten or not redis.call('ZSCORE', ends, '') then
  local is_new = redis.call('EXISTS', memory, ends) == 0 or (redis.call('HGET', memory, 'new') or '') ~= ''
  local copy = math.max(now + latest_end(ends, now), tonumber(redis.call('HGET', memory, 'copy') or '0'))
  redis.call('UNLINK', memory, ends)
  redis.call('ZADD', ends, 0, '')
  redis.call('HSET', memory, 'run', run, 'loss', loss, 'note', '', 'new', is_new and '1' or '', 'copy', digits(copy))
elseif known ~= run then
  redis.call('HSET', memory, 'run', run)
end
forget_ended(ends)
known = redis.call('HMGET', memory, 'loss', 'note', 'floor', 'most', 'new', 'copy')
local left, new = digits(latest_end(ends, now)), known[5] or ''
if known[3] then
  return { digits(now), left, 'whole', known[4], new }
end
local copy = digits(math.max(0, tonumber(known[6] or '0') - now))
return { digits(now), left, 'lost', known[1], known[2] or '', new, copy }
