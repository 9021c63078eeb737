-- Releases a share of an RReadWriteLock of Redisson, if it is still this owner's, and notifies the
-- waiters. A share that lingers is nobody's, so no late renewal revives it. After redisson.lua.
--
-- KEYS[1] name   KEYS[2] key of a hold of ARGV[2], of a reader   KEYS[3] as of redisson-acquire.lua
-- ARGV[1] owner   ARGV[2] 'linger:' and the owner   ARGV[3] linger, ms, 0 for none
-- ARGV[4] channel of the read/write lock   ARGV[5] channel of the RLock   ARGV[6] 'read' or 'write'
-- ARGV[7] publish with
-- reply   1 released, now or before   0 not this owner's

local name, owner, lingering, linger, what = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[6]
local kind = redis.call('TYPE', name).ok
local mode = kind == 'hash' and mode_of(name)
if not mode then
  -- Another kind of lock is nobody's.
  return 0
end

-- Those who wait look at it now. Redisson wakes one waiter of each client with '0', and all with '1'.
local function notify(message)
  publish(ARGV[4], message)
  publish(ARGV[5], '0')
end

-- It may have become a reader, or may not yet: the owner decides.
if mode == 'write' and (what == 'write' or redis.call('HEXISTS', name, owner .. ':write') == 1) then
  if redis.call('HEXISTS', name, owner .. ':write') == 0 then
    return redis.call('HEXISTS', name, lingering .. ':write')
  elseif linger ~= '0' then
    redis.call('PEXPIRE', name, linger)
    redis.call('HINCRBY', name, lingering .. ':write', 1)
    redis.call('HDEL', name, owner .. ':write')
    return 1
  end
  redis.call('HDEL', name, owner .. ':write')
  -- A client of Redisson may read what it writes. It goes on reading.
  if redis.call('HLEN', name) == 1 then
    redis.call('DEL', name)
  else
    redis.call('HSET', name, 'mode', 'read')
  end
  notify('1')
  return 1
end

if owner == 'mode' or redis.call('HEXISTS', name, owner) == 0 then
  return redis.call('HEXISTS', name, lingering) == 1 and left_of(name, lingering) ~= 0 and 1 or 0
end
local left, all = left_of(name, owner), redis.call('PTTL', name)
if linger ~= '0' and left ~= 0 then
  -- The first write must be one that a server out of memory allows. Then it allows the others.
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[2], 1, 'PX', linger)
  redis.call('HINCRBY', name, lingering, 1)
  lengthen(name, linger)
end
drop_reader(name, owner)
local others
if all == -1 or mode == 'write' or left > 0 and left + 5 < all then
  -- It is kept for another one, and for longer. Ends that were set at once may differ by a ms.
  others = redis.call('HLEN', name) > 1
else
  -- As Redisson does: the hash is to last as long as its last reader.
  local last, longest = last_reader(name)
  others = last
  if last and longest > 0 then
    redis.call('PEXPIRE', name, longest)
  end
end
if not others then
  redis.call('DEL', name)
  notify('0')
end
return left == 0 and 0 or 1
