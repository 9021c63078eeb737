-- Notes when the leases of a name end, as the name stands now. Prefix of other scripts. See node.lua.
--
-- It reads the name, so it does not matter which call was sent first: the last that is executed leaves
-- the end that stands.

local function note_end(ends, name)
  local kind, till = redis.call('TYPE', name).ok, nil
  if kind == 'string' then
    local left = redis.call('PTTL', name)
    if left >= 0 then
      local time = redis.call('TIME')
      till = string.format('%.0f', tonumber(time[1]) * 1000 + math.ceil(tonumber(time[2]) / 1000) + left)
    end
  elseif kind == 'zset' then
    till = redis.call('ZREVRANGE', name, 0, 0, 'WITHSCORES')[2]
  end
  if till then
    redis.call('ZADD', ends, till, name)
  else
    redis.call('ZREM', ends, name)
  end
end
