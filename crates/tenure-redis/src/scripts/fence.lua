-- The grant counter, raised so that no number is granted twice after the server lost data. Prefix
-- of other scripts.
--
-- `raised(key, least, time)` is the largest of the counter at `key`, `least` and the server's TIME
-- in microseconds since 2026-01-01 UTC. No clock raises it beyond HALF of all numbers: the year
-- 2168. What a client has seen raises it AHEAD of the clock at most, ten years. So one bad value
-- does not use up the numbers, and does not come back after it was deleted. Numbers leave a script
-- only through `digits`: Lua's own formatting keeps 14 digits, and the counter has 15 from 2029 on.

local EPOCH = 1767225600
local MOST = 9007199254740991
local HALF = 4503599627370496
local AHEAD = 315360000000000

local function digits(number)
  return string.format('%.0f', number)
end

-- Shows the beginning of the value, without control characters: anybody may have written it.
local function unusable(key, stored)
  return redis.error_reply('TENURECOUNTER the grant counter at ' .. key .. ' holds ' .. stored:sub(1, 40):gsub('[^%w%p ]', '?'))
end

-- Microseconds of the server's TIME since 2026.
local function micros_of(time)
  return math.max(0, (tonumber(time[1]) - EPOCH) * 1000000 + tonumber(time[2]))
end

-- Ms since a grant was counted, -1 if unknown. The counter is raised to the time before a grant.
local function age_of(number, time)
  local counted = tonumber(number)
  local now = micros_of(time)
  return counted and counted <= now and math.floor((now - counted) / 1000) or -1
end

local function raised(key, least, time)
  local stored = redis.pcall('GET', key) or '0'
  if type(stored) == 'table' then
    return nil, stored.err:find('WRONGTYPE', 1, true) and unusable(key, 'no number but another type of key') or stored
  end
  local number = stored:match('^%d+$') and tonumber(stored)
  local micros = micros_of(time)
  if not number or number >= MOST then
    return nil, unusable(key, stored)
  end
  if micros >= HALF then
    return nil, redis.error_reply('TENUREYEAR the clock of this server is more than a century ahead')
  end
  least = tonumber(least)
  return math.max(number, micros, least <= micros + AHEAD and least or 0)
end

local function write_counter(key, number)
  redis.call('SET', key, digits(number), 'KEEPTTL')
end

local function read_counter(key)
  return redis.call('GET', key)
end
