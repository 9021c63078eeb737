-- The holders of the name. Prefix of other scripts, after keys.lua and fence.lua.
--
-- `read_name` reads the state of the name into variables, so that each command runs once.

local MUTEX, READ_WRITE = '1', '4294967295'

-- The value of a mutex, false if nobody holds one.
local holder
-- Of shares: the capacity that holders have, nil without holders, and the sum of their weights.
local kind, total
-- A mutex was released, and its value is still there.
local leftover

-- The kind of lock that a capacity stands for. A mutex is the writer of a read/write lock of the same name.
local function kind_of(capacity)
  return capacity == MUTEX and READ_WRITE or capacity
end

-- The weight that `owner` holds and the capacity that it is a part of, nil for none. Of shares, the
-- end of its lease as well.
local function weight_of(owner)
  if holder then
    if holder == owner then
      return 1, MUTEX
    end
    return nil
  end
  local till = kind and redis.call('ZSCORE', name, owner)
  if not till then
    return nil
  end
  return tonumber(redis.call('HGET', shares, '=' .. owner) or '1'), kind, tonumber(till)
end

-- Whether `weight` of `capacity` fits beside the holders.
local function fits(weight, capacity)
  if holder then
    return false
  elseif capacity == MUTEX then
    return not kind
  end
  return total + weight <= tonumber(capacity)
end

-- Makes the owner, who has had `held`, a holder of `weight` of `capacity` for `ms` from now.
local function hold(owner, weight, capacity, ms, held)
  if capacity == MUTEX then
    redis.call('SET', name, owner, 'PX', ms)
    holder, leftover = owner, false
    return
  end
  if leftover then
    redis.call('DEL', name, shares)
    leftover = false
  end
  local more = weight - (held or 0)
  total = total + more
  if kind then
    redis.call('HINCRBY', shares, '#', digits(more))
  else
    -- A hash that outlived its holders is not counted on.
    kind = capacity
    redis.call('HSET', shares, '##', capacity, '#', digits(total))
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
  if holder then
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
    redis.call('HDEL', shares, '=' .. owner, '@' .. owner)
  end
end

-- Counts what a share weighs as free, before `depart` removes it. Returns whether no holder is left then.
local function forgo(weight)
  total = total - weight
  if total > 0 then
    return false
  end
  kind, total = nil, 0
  return true
end

-- Removes a share that `forgo` has counted as free; `alone` if it was the only one. A release calls this last, because in a slot of
-- a cluster that moves, the server ends a script that touches a key which the script has deleted.
local function depart(owner, weight, alone)
  if not holder then
    redis.call('ZREM', name, owner)
  end
  if not kind then
    redis.call('DEL', shares)
    return
  end
  redis.call('HDEL', shares, '=' .. owner, '@' .. owner)
  if not alone then
    redis.call('HINCRBY', shares, '#', digits(-weight))
  end
end

-- Drops leases that have ended, of `count` in all.
local function reap(count)
  local ended = redis.call('ZCOUNT', name, '-inf', digits(now))
  if ended == 0 then
    return
  elseif ended == count then
    redis.call('DEL', name, shares)
    kind, total = nil, 0
    return
  elseif total == count then
    -- All weigh 1: one command drops them. Another drops what is noted of the first.
    local notes = redis.call('ZRANGEBYSCORE', name, '-inf', digits(now), 'LIMIT', 0, DEAD_AT_ONCE)
    for i, owner in ipairs(notes) do
      notes[i] = '@' .. owner
    end
    redis.call('HDEL', shares, unpack(notes))
    redis.call('ZREMRANGEBYSCORE', name, '-inf', digits(now))
    redis.call('HINCRBY', shares, '#', digits(-ended))
    total = total - ended
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
  return member and (kind or 'torn')
end

-- The refusal of a name that is held or waited for with another capacity.
local function other_kind(of)
  return redis.error_reply('TENUREKIND it is in use with a capacity of ' .. of)
end

-- Reads the name, drops leases that have ended, and refuses a name of another kind.
local function read_name()
  holder, kind, total, leftover = false, nil, 0, false
  local value = capacity == MUTEX and redis.pcall('GET', name) or nil
  if capacity == MUTEX and type(value) ~= 'table' then
    holder = value or false
    return nil
  elseif value and not value.err:find('WRONGTYPE', 1, true) then
    return value
  end
  local known = redis.call('HMGET', shares, '##', '#')
  kind, total = known[1] or nil, tonumber(known[2] or '0')
  local count = redis.pcall('ZCARD', name)
  if type(count) == 'table' and not count.err:find('WRONGTYPE', 1, true) then
    return count
  elseif type(count) == 'table' then
    value = value or redis.pcall('GET', name)
    if type(value) == 'table' then
      kind, total = nil, 0
      return value
    end
    holder = value
  end
  if kind and (holder or count == 0) then
    -- Somebody overwrote or deleted the name under its holders.
    redis.call('DEL', shares)
    kind, total = nil, 0
  elseif not holder and count > 0 and not kind then
    -- A sorted set without the hash beside it is not ours to read.
    return redis.error_reply('WRONGTYPE it is held as something else')
  elseif kind then
    reap(count)
  end
  local held = holder and MUTEX or kind
  if held and kind_of(held) ~= kind_of(capacity) then
    return other_kind(held)
  end
end
