-- Gives an RLock of Redisson up, if it is still this owner's. The owner of a lock that lingers is
-- nobody's, so no late renewal revives it. Returns the reply of a release, and whether this one has
-- done it. Prefix of other scripts.

local function unlock(name, owner, lingering, linger)
  -- A key of another type, or another object of Redisson, is nobody's.
  if redis.call('TYPE', name).ok ~= 'hash' or redis.call('HLEN', name) ~= 1 then
    return 0
  elseif redis.call('HEXISTS', name, owner) == 0 then
    return redis.call('HEXISTS', name, lingering)
  end
  if linger ~= '0' then
    redis.call('PEXPIRE', name, linger)
    redis.call('HINCRBY', name, lingering, 1)
  end
  redis.call('HDEL', name, owner)
  return 1, true
end
