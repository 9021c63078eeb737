-- Those who hold the name. Prefix of other scripts, after keys.lua and fence.lua.
--
-- `look` reads what is there. Every call costs, so what is known of the name is kept in variables and not asked again.

local mutex
-- The value of a mutex, false where it is free.
local holder
-- Of shares: the capacity they were taken with, nil where nobody holds, and the weights of all together.
local kind, total

-- The weight that `owner` holds, nil for none, and the end of its lease where that is kept.
local function weight_of(owner)
  if mutex then
    return holder == owner and 1 or nil
  end
  local till = kind and redis.call('ZSCORE', name, owner)
  if not till then
    return nil
  end
  return tonumber(redis.call('HGET', shares, '=' .. owner) or '1'), tonumber(till)
end

-- Whether a share of `weight` fits beside those that are held.
local function fits(weight)
  if mutex then
    return not holder
  end
  return total + weight <= tonumber(capacity)
end

-- Makes a share the owner's, who has `held` until now, for `ms` from now.
local function hold(owner, weight, ms, held)
  if mutex then
    redis.call('SET', name, owner, 'PX', ms)
    holder = owner
    return
  end
  local more = weight - (held or 0)
  total = total + more
  redis.call('HINCRBY', shares, '#', digits(more))
  if not kind then
    kind = capacity
    redis.call('HSET', shares, '##', capacity)
  end
  if weight ~= 1 then
    redis.call('HSET', shares, '=' .. owner, digits(weight))
  elseif held then
    redis.call('HDEL', shares, '=' .. owner)
  end
  redis.call('ZADD', name, digits(now + tonumber(ms)), owner)
  outlive(name, shares, ms, ms)
end

local function drop(owner, weight)
  if mutex then
    redis.call('DEL', name)
    holder = false
    return
  end
  redis.call('ZREM', name, owner)
  total = total - weight
  if total <= 0 then
    redis.call('DEL', shares)
    kind, total = nil, 0
  else
    redis.call('HINCRBY', shares, '#', digits(-weight))
    if weight ~= 1 then
      redis.call('HDEL', shares, '=' .. owner)
    end
  end
end

-- Drops leases that have ended, each at its own end.
local function reap()
  local ended = redis.call('ZCOUNT', name, '-inf', digits(now))
  if ended == 0 then
    return
  end
  if redis.call('HLEN', shares) == 2 then
    -- All weigh the same: however many they are, it is one command.
    redis.call('ZREMRANGEBYSCORE', name, '-inf', digits(now))
    total = total - ended
    if total > 0 then
      redis.call('HINCRBY', shares, '#', digits(-ended))
    else
      redis.call('DEL', shares)
      kind, total = nil, 0
    end
    return
  end
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', name, '-inf', digits(now), 'LIMIT', 0, DEAD_AT_ONCE)) do
    drop(owner, (weight_of(owner)))
  end
end

-- Whether a name that `look` has refused is `owner`'s all the same: as another kind, or as a share that has lost what stood beside it
-- ('torn').
local function member_otherwise(owner)
  local value = redis.pcall('GET', name)
  if type(value) ~= 'table' then
    return value == owner
  end
  local member = type(redis.pcall('ZSCORE', name, owner)) == 'string'
  return member and (mutex or kind) or member and 'torn'
end

-- Reads what is there, drops what has ended, and refuses a name that is of another kind.
local function look()
  mutex, holder, kind, total = capacity == '1', false, nil, 0
  local known = not mutex and redis.call('HMGET', shares, '##', '#')
  if mutex then
    local value = redis.pcall('GET', name)
    if type(value) ~= 'table' then
      holder = value
      return nil
    end
    -- Other shares are in place, unless all of them have ended.
    known = shares and redis.call('HMGET', shares, '##', '#') or {}
    if not known[1] or redis.call('ZCOUNT', name, '(' .. digits(now), '+inf') > 0 then
      return value
    end
    redis.call('DEL', name, shares)
    return nil
  end
  kind, total = known[1] or nil, tonumber(known[2] or '0')
  local count = redis.pcall('ZCARD', name)
  if type(count) == 'table' then
    return count
  elseif count == 0 and kind then
    -- Somebody deleted the name under those who held it.
    redis.call('DEL', shares)
    kind, total = nil, 0
  elseif count > 0 and not kind then
    -- A sorted set without the hash beside it is not ours to read.
    return redis.error_reply('WRONGTYPE it is held as something else')
  elseif kind then
    reap()
  end
  if kind and kind ~= capacity then
    return redis.error_reply('TENUREKIND it is held with a capacity of ' .. kind)
  end
end
