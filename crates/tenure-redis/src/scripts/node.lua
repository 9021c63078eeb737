-- The memory of a node of a quorum. Prefix of other scripts.
--
-- The memory is a hash beside the locks of one prefix:
--   run     identity of the server when it was last seen; another one: it may have other data
--   loss    identifies the loss of data since which it stands
--   note    while it does not vote: how long it has to wait and has waited, as clients noted it
--   copy    the same while: the latest end in the data with which it came back, ms
--   new     missing or empty, unless nobody has been granted anything here as far as is known. Then '1', or the losses of
--           the others that were new when it began to vote
--   floor   no fence from before is above it; missing: the node does not vote
--   most    no counter is above it
--   turned  when the floor was last raised to `most`, s
--   =NAME   the counter of a name; missing: the floor
--
-- Beside it the ends are a sorted set: lease or linger -> its end, ms of this server's clock. An empty
-- member shows that none was lost. See node-ends.lua.
--
-- The counters are in the memory, so none is evicted or deleted while the node votes. Twice a day the
-- floor is raised to `most`, and the counters, which are not above it, are dropped.

local HALF_DAY = 43200
local MOST = 9007199254740991
-- How far `most` is ahead of the counters, so that few grants have to raise it.
local AHEAD = 1000000

local function digits(number)
  return string.format('%.0f', number)
end

-- Has the counter of a name stand at `number`.
local function count(memory, name, number, most)
  if number > most then
    redis.call('HSET', memory, 'most', digits(number + AHEAD), '=' .. name, digits(number))
    redis.call('HDEL', memory, 'new')
  else
    redis.call('HSET', memory, '=' .. name, digits(number))
  end
end

-- Raises the floor, and drops the counters.
local function turn(memory, floor, seconds)
  local fields, kept = { 'run', 'loss', 'most' }, { 'floor', digits(floor), 'turned', digits(seconds) }
  for i, value in ipairs(redis.call('HMGET', memory, unpack(fields))) do
    if value then
      table.insert(kept, fields[i])
      table.insert(kept, value)
    end
  end
  redis.call('UNLINK', memory)
  redis.call('HSET', memory, unpack(kept))
end

-- How far a node that votes has counted for a name, then `most` and the floor. Else nothing, and why.
local function counted(memory, run, name)
  local known = redis.call('HMGET', memory, 'run', 'floor', 'most', 'turned', '=' .. name)
  local floor, most = tonumber(known[2]), tonumber(known[3])
  if known[1] ~= run or not floor then
    return nil, redis.error_reply('TENURELOST the node does not vote')
  end
  local number = math.max(tonumber(known[5] or '0'), floor)
  local seconds, turned = tonumber(redis.call('TIME')[1]), tonumber(known[4])
  if seconds - turned >= HALF_DAY or seconds < turned then
    floor = math.max(floor, most)
    number = floor
    turn(memory, floor, seconds)
  end
  if number >= MOST then
    return nil, redis.error_reply('TENURECOUNTER the grant counter of ' .. name .. ' has no number left')
  end
  return number, most, floor
end
