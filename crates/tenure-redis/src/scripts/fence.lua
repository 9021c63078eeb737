-- The grant counter, lifted so that it never falls behind what was handed out before data was lost. Prefix of other scripts.
--
-- `lifted(key, least, time)` is the largest of the counter at `key`, `least` and the server's TIME in microseconds since
-- 2026-01-01 UTC. Numbers leave a script only through `digits`: Lua's own formatting keeps 14 of them, and the counter has
-- 15 from 2029 on.

local EPOCH = 1767225600
local MOST = 9007199254740991

local function digits(number)
  return string.format('%.0f', number)
end

local function lifted(key, least, time)
  local stored = redis.call('GET', key) or '0'
  local number = tonumber(stored)
  local micros = (tonumber(time[1]) - EPOCH) * 1000000 + tonumber(time[2])
  if not number or number < 0 or number >= MOST or number ~= math.floor(number) then
    return nil, redis.error_reply('TENURECOUNTER the grant counter at ' .. key .. ' holds ' .. stored)
  end
  if micros >= MOST then
    return nil, redis.error_reply('TENURECOUNTER the clock of this server is centuries ahead')
  end
  return math.max(number, micros, tonumber(least))
end
