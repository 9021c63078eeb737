-- Permits of an RPermitExpirableSemaphore of Redisson: a string with the number that is free, and a
-- sorted set of those that are taken, by the end of their leases in Unix ms. An RSemaphore is the
-- string alone. Prefix of other scripts, after now.lua.
--
-- A share of k permits has the members `<owner>#1` to `<owner>#k`.

local function member(owner, number)
  return string.format('%s#%d', owner, number)
end

-- How many permits an owner has.
local function held_by(ends, owner)
  local held = 0
  while redis.call('ZSCORE', ends, member(owner, held + 1)) do
    held = held + 1
  end
  return held
end

-- Gives so many permits back. The string may have been deleted: it is not made anew.
local function give_back(name, channel, count)
  if count > 0 and redis.call('EXISTS', name) == 1 then
    local free = redis.call('INCRBY', name, count)
    if free > 0 then
      redis.pcall('PUBLISH', channel, free)
    end
  end
end

local function drop_permits(ends, owner, from, to)
  for number = from, to do
    redis.call('ZREM', ends, member(owner, number))
  end
end

-- Gives the permits back whose leases have ended.
local function collect(name, ends, channel, now)
  repeat
    local ended = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 1000)
    if #ended > 0 then
      redis.call('ZREM', ends, unpack(ended))
      give_back(name, channel, #ended)
    end
  until #ended < 1000
end
