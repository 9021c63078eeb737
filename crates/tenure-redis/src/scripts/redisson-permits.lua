-- Permits of an RPermitExpirableSemaphore of Redisson: a string with the number that is free, and a
-- sorted set of those that are taken, by the end of their leases in Unix ms. An RSemaphore is the
-- string alone. Prefix of other scripts, after now.lua and redisson-publish.lua.
--
-- A share of k permits has the members `<owner>#1` to `<owner>#k`.

local function member(owner, number)
  return owner .. '#' .. number
end

-- How many permits an owner has.
local function held_by(ends, owner)
  local held = 0
  while redis.call('ZSCORE', ends, member(owner, held + 1)) do
    held = held + 1
  end
  return held
end

-- Whether it has one of its permits but the first.
local function held_beyond(ends, owner, weight)
  for number = 2, weight do
    if redis.call('ZSCORE', ends, member(owner, number)) then
      return true
    end
  end
  return false
end

-- Redisson lets the ends go with a semaphore that has a ttl. They are kept for as long as a lease.
local function keep_ends(ends, ttl)
  local left = redis.call('PTTL', ends)
  if left >= 0 and left < ttl then
    redis.call('PEXPIRE', ends, ttl)
  end
end

-- Gives so many permits back. The string may have been deleted: it is not made anew.
local function give_back(name, channel, count)
  if count > 0 and redis.call('EXISTS', name) == 1 then
    publish(channel, redis.call('INCRBY', name, count))
  end
end

-- Returns how many there were.
local function drop_permits(ends, owner, from, to)
  local dropped = 0
  for number = from, to do
    dropped = dropped + redis.call('ZREM', ends, member(owner, number))
  end
  return dropped
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
