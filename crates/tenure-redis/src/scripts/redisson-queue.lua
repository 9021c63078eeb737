-- The queue of an RFairLock of Redisson: a list of owners, and a sorted set of the times, in Unix ms,
-- at which Redisson drops each of them once it is first. Prefix of other scripts, after redisson.lua, now.lua and
-- redisson-publish.lua.
--
-- Redisson counts on a turn of WAIT at most for each waiter. Each time that one leaves, those behind
-- it are due that much earlier. A waiter of tenure has a key beside that ends without a heartbeat, so
-- one that died does not keep its place for WAIT. Its value is the ttl of a lease that is handed to it,
-- ':', and that of the key, both in ms.

-- The default of Redisson's fairLockWaitTimeout, ms.
local WAIT = 300000

local function heartbeat_key(name, owner)
  return key_beside(name, owner, 'tenure_wait')
end

-- Whether it has the form of an owner of tenure.
local function is_ours(owner)
  return owner:sub(37, 37) == ':' and owner:sub(-1) == '.'
end

-- The two ttls of a waiter of tenure whose heartbeats come.
local function ttls_of(name, owner)
  local handoff_ttl, entry_ttl = (redis.call('GET', heartbeat_key(name, owner)) or ''):match('^(%d+):(%d+)$')
  -- Anybody may have written it.
  if handoff_ttl and #handoff_ttl < 10 and #entry_ttl < 10 then
    return handoff_ttl, entry_ttl
  end
end

-- Whether its turn will not come: it is due, as Redisson has it, or a waiter of ours that has died.
local function has_lapsed(name, dues, owner)
  local due = redis.call('ZSCORE', dues, owner)
  return not due or tonumber(due) <= now_ms() or is_ours(owner) and not ttls_of(name, owner)
end

local function drop(name, queue, dues, owner)
  redis.call('LREM', queue, 1, owner)
  redis.call('ZREM', dues, owner)
  redis.call('DEL', heartbeat_key(name, owner))
end

-- Takes the waiter of ours at this index out, 0 for the first. Those behind it are due a turn earlier,
-- as Redisson has it, but not before all in front of them could have had theirs from now on: it may have
-- waited for longer than it counted on.
local function leave(name, queue, dues, owner, index)
  drop(name, queue, dues, owner)
  local now = now_ms()
  for turns, behind in ipairs(redis.call('LRANGE', queue, index, -1)) do
    local due = tonumber(redis.call('ZSCORE', dues, behind)) or 0
    local earlier = math.max(due - WAIT, math.min(due, now + (index + turns) * WAIT))
    redis.call('ZADD', dues, 'XX', string.format('%.0f', earlier), behind)
  end
end

-- Dead waiters that are dropped at once. More would block the server for longer.
local MOST = 1000

-- Drops those at the head that are due or dead. Then, if the lock is free, hands it to the head if
-- that is ours, and notifies it. One of Redisson comes for it.
local function serve(name, queue, dues, channel)
  local head
  for _ = 1, MOST do
    head = redis.call('LINDEX', queue, 0)
    if not head or not has_lapsed(name, dues, head) then
      break
    end
    drop(name, queue, dues, head)
  end
  if not head or redis.call('EXISTS', name) == 1 or has_lapsed(name, dues, head) then
    return
  elseif is_ours(head) then
    local handoff_ttl = ttls_of(name, head)
    leave(name, queue, dues, head, 0)
    redis.call('HSET', name, head, 1)
    redis.call('PEXPIRE', name, handoff_ttl)
  end
  publish(channel .. ':' .. head, '0')
end
