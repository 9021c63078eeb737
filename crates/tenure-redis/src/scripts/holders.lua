-- The holders of the name. Prefix of other scripts, after keys.lua and fence.lua.
--
-- `read_name` reads the state of the name into variables, so that each command runs once.

local mutex
-- The value of a mutex, false if it is free.
local holder
-- Of shares: the capacity that holders have, nil without holders, and the sum of their weights.
local kind, total

-- The weight that `owner` holds, nil for none. Of shares, the end of its lease as well.
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

-- Whether a share of `weight` fits beside the holders.
local function fits(weight)
  if mutex then
    return not holder
  end
  return total + weight <= tonumber(capacity)
end

-- Makes the owner, who has had `held`, a holder of `weight` for `ms` from now.
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

-- Drops leases that have ended.
local function reap()
  local ended = redis.call('ZCOUNT', name, '-inf', digits(now))
  if ended == 0 then
    return
  end
  if redis.call('HLEN', shares) == 2 then
    -- All weigh 1: one command drops them.
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

-- Whether `owner` holds a name that `read_name` has refused: as another kind, or as a share without
-- the hash beside it ('torn').
local function member_otherwise(owner)
  local value = redis.pcall('GET', name)
  if type(value) ~= 'table' then
    return value == owner
  end
  local member = type(redis.pcall('ZSCORE', name, owner)) == 'string'
  return member and (mutex or kind) or member and 'torn'
end

-- The refusal of a name that is held or waited for with another capacity.
local function other_kind(of)
  return redis.error_reply('TENUREKIND it is in use with a capacity of ' .. of)
end

-- Reads the name, drops leases that have ended, and refuses a name of another kind.
local function read_name()
  mutex, holder, kind, total = capacity == '1', false, nil, 0
  local known = not mutex and redis.call('HMGET', shares, '##', '#')
  if mutex then
    local value = redis.pcall('GET', name)
    if type(value) ~= 'table' then
      holder = value
      return nil
    end
    -- The name has shares, unless all of them have ended.
    known = shares and redis.call('HMGET', shares, '##', '#') or {}
    if not known[1] then
      return value
    elseif redis.call('ZCOUNT', name, '(' .. digits(now), '+inf') > 0 then
      return other_kind(known[1])
    end
    redis.call('DEL', name, shares)
    return nil
  end
  kind, total = known[1] or nil, tonumber(known[2] or '0')
  local count = redis.pcall('ZCARD', name)
  if type(count) == 'table' then
    return type(redis.pcall('GET', name)) == 'string' and other_kind(1) or count
  elseif count == 0 and kind then
    -- Somebody deleted the name while it was held.
    redis.call('DEL', shares)
    kind, total = nil, 0
  elseif count > 0 and not kind then
    -- A sorted set without the hash beside it is not ours.
    return redis.error_reply('WRONGTYPE it is held as something else')
  elseif kind then
    reap()
  end
  if kind and kind ~= capacity then
    return other_kind(kind)
  end
end
