-- Those who hold the name. Prefix of other scripts, after keys.lua and fence.lua.
--
-- `look` reads what is there. Then `holder` is the value of a mutex, false where it is free.

local mutex = capacity == '1'
local holder = false

local function sum_of_weights()
  return tonumber(redis.call('HGET', shares, '#') or '0')
end

-- The weight that `owner` holds, nil for none.
local function weight_of(owner)
  if mutex then
    return holder == owner and 1 or nil
  end
  return redis.call('ZSCORE', name, owner) and tonumber(redis.call('HGET', shares, owner) or '1') or nil
end

local function left_of(owner)
  if mutex then
    return redis.call('PTTL', name)
  end
  return tonumber(redis.call('ZSCORE', name, owner)) - now
end

-- Whether a share of `weight` fits beside those that are held.
local function fits(weight)
  if mutex then
    return not holder
  end
  return sum_of_weights() + weight <= tonumber(capacity)
end

-- Makes a share the owner's for `ms` from now.
local function hold(owner, weight, ms)
  if mutex then
    redis.call('SET', name, owner, 'PX', ms)
    holder = owner
    return
  end
  redis.call('HINCRBY', shares, '#', digits(weight - (weight_of(owner) or 0)))
  redis.call('ZADD', name, digits(now + tonumber(ms)), owner)
  if weight == 1 then
    redis.call('HDEL', shares, owner)
  else
    redis.call('HSET', shares, owner, digits(weight))
  end
  redis.call('HSET', shares, '##', capacity)
  outlive(name, ms)
  outlive(shares, ms)
end

local function drop(owner, weight)
  if mutex then
    redis.call('DEL', name)
    holder = false
    return
  end
  redis.call('ZREM', name, owner)
  redis.call('HDEL', shares, owner)
  if redis.call('EXISTS', name) == 1 then
    redis.call('HINCRBY', shares, '#', digits(-weight))
  else
    redis.call('DEL', shares)
  end
end

-- Drops leases that have ended, each at its own end, and refuses a name that is of another kind.
local function look()
  if mutex then
    local value = redis.pcall('GET', name)
    if type(value) == 'table' then
      return value
    end
    holder = value
    return nil
  end
  local kind = redis.call('HGET', shares, '##')
  if not kind then
    -- A sorted set without the hash beside it is not ours to read.
    return redis.call('EXISTS', name) == 1 and redis.error_reply('WRONGTYPE it is held as something else') or nil
  end
  local ended = redis.pcall('ZRANGEBYSCORE', name, '-inf', digits(now), 'LIMIT', 0, AT_ONCE)
  if ended.err then
    return ended
  end
  for _, owner in ipairs(ended) do
    drop(owner, weight_of(owner))
  end
  if redis.call('EXISTS', name) == 0 then
    redis.call('DEL', shares)
  elseif kind ~= capacity then
    return redis.error_reply('TENUREKIND it is held with a capacity of ' .. kind)
  end
end
