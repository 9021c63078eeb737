-- The holds of an RReadWriteLock of Redisson. Prefix of other scripts.
--
-- The hash has the field `mode`, and one field for each owner: its value is how often it holds. Each
-- hold of a reader has a key of its own, numbered from 1, which ends by itself. Nothing is done to a
-- hash without a ttl: it may be anybody's.

-- More holds of one owner are not looked for: anybody may have written the number.
local MOST_HOLDS = 1000

-- A key of an owner beside `name`. Not by a format: that ends at a byte 0.
local function key_beside(name, owner, what)
  return (name:find('{', 1, true) and name or '{' .. name .. '}') .. ':' .. owner .. ':' .. what
end

-- The keys of the holds of an owner.
local function hold_keys(name, owner)
  local count, keys = redis.call('HGET', name, owner) or '', {}
  count = #count < 10 and count:match('^%d+$') and tonumber(count) or 0
  for number = count, math.max(1, count - MOST_HOLDS), -1 do
    keys[#keys + 1] = key_beside(name, owner, 'rwlock_timeout:' .. number)
  end
  return keys
end

-- Ms until the last hold of a reader ends: 0 if all have, -1 if one never does.
local function left_of(name, owner)
  local left = 0
  for _, key in ipairs(hold_keys(name, owner)) do
    local ttl = redis.call('PTTL', key)
    if ttl == -1 then
      return -1
    end
    left = math.max(left, ttl)
  end
  return left
end

local function drop_reader(name, owner)
  for _, key in ipairs(hold_keys(name, owner)) do
    redis.call('DEL', key)
  end
  redis.call('HDEL', name, owner)
end

-- 'read' or 'write', nil for any other hash.
local function mode_of(name)
  local mode = redis.call('HGET', name, 'mode')
  return (mode == 'read' or mode == 'write') and redis.call('HLEN', name) > 1 and mode or nil
end

-- Drops readers that have ended. Returns the one that lasts longest, and how long in ms; -1: without
-- end. Without a reader the name is free.
local function last_reader(name)
  local last, longest
  for _, owner in ipairs(redis.call('HKEYS', name)) do
    local left = owner ~= 'mode' and left_of(name, owner)
    if left == 0 then
      redis.call('HDEL', name, owner)
    elseif left and longest ~= -1 and (left == -1 or left > (longest or 0)) then
      last, longest = owner, left
    end
  end
  if not last then
    redis.call('DEL', name)
  end
  return last, longest
end

-- An owner of a lock in this mode, '' if there is none.
local function one_of(name, mode)
  for _, owner in ipairs(redis.call('HKEYS', name)) do
    if owner ~= 'mode' and (mode == 'read' or owner:sub(-6) == ':write') then
      return owner
    end
  end
  return ''
end

-- The holder of a busy read/write lock, or nil if its readers have ended: then it is free.
local function busy_by(name, mode)
  local left = redis.call('PTTL', name)
  if mode == 'write' or left == -1 then
    return { 0, one_of(name, mode), left, mode }
  end
  local last, longest = last_reader(name)
  return last and { 0, last, longest, mode }
end

local function lengthen(key, ttl)
  if redis.call('PTTL', key) < tonumber(ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end
