-- The memory of a node of a quorum. Prefix of other scripts.
--
-- The memory is a hash beside the locks of one prefix:
--   run     run id of the server when it was last seen; another one: the server has restarted
--   always  '1' if each write was on disk before its reply, so that a restart loses nothing
--   loss    identifies the loss of data since which it stands
--   from    the node has to wait until then, ms of this server's clock; missing: nobody has said so
--   floor   no fence from before is above it; missing: the node does not vote
--   ttl     longest ttl of any lease, ms
--   most    no counter is above it
--   turned  when the floor was last raised to `most`, s
--
-- A counter of a name lives for a day after its last grant. The floor is raised to `most` twice a
-- day, so a counter that is made anew goes on above the one before.

local DAY, HALF_DAY = 86400, 43200
local MOST = 9007199254740991
-- How far `most` is ahead of the counters, so that few grants have to raise it.
local AHEAD = 1000000

local function digits(number)
  return string.format('%.0f', number)
end

-- Ms of this server's clock.
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- The floor of a node that votes, for a lease of `ttl` ms. Else nothing, and why.
local function floor_of(memory, run, ttl, seconds)
  local known = redis.call('HMGET', memory, 'run', 'floor', 'ttl', 'most', 'turned')
  local floor = tonumber(known[2])
  if known[1] ~= run or not floor then
    return nil, redis.error_reply('TENURELOST the node does not vote')
  end
  local most = tonumber(known[4])
  if tonumber(ttl) > tonumber(known[3]) then
    redis.call('HSET', memory, 'ttl', ttl)
  end
  if seconds - tonumber(known[5]) >= HALF_DAY then
    floor = math.max(floor, most)
    redis.call('HSET', memory, 'floor', digits(floor), 'turned', digits(seconds))
  end
  return floor, most
end

-- Has the counter of a name stand at `number`.
local function count(memory, counter, number, most)
  if number > most then
    redis.call('HSET', memory, 'most', digits(number + AHEAD))
  end
  redis.call('SET', counter, digits(number), 'EX', DAY)
end

-- The counter of a name, or nothing and why.
local function counted(counter, floor)
  local stored = redis.pcall('GET', counter) or '0'
  local number = type(stored) == 'string' and stored:match('^%d+$') and tonumber(stored)
  if not number or number >= MOST then
    return nil, redis.error_reply('TENURECOUNTER the grant counter at ' .. counter .. ' is no number')
  end
  return math.max(number, floor)
end
