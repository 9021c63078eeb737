-- Releases a share, or drops a queue entry, if it is still this owner's, and serves the waiters.
-- The value of a share that lingers matches no owner, so no late renewal revives it. After
-- release-free, keys, fence, holders and queue. Called as `release(KEYS, ARGV)`.
--
-- ARGV[3] owner     ARGV[4] linger, ms, 0 for none
-- reply   1 released, now or before   0 not this owner's

-- Releases a name of another kind, or one that is no lock: the owner is compared before the kind.
-- Its waiters find out by their next poll.
local function otherwise(owner, refused)
  if not refused.err:find('WRONGTYPE', 1, true) and not refused.err:find('TENUREKIND', 1, true) then
    return refused
  end
  local stands = member_otherwise(owner)
  if stands == 'torn' then
    return redis.call('ZREM', name, owner)
  end
  return stands and refused or (dequeue(owner) and 1 or 0)
end

local function release(keys, args)
  local refused = begin(keys, args)
  local owner, linger = args[3], args[4]
  if refused then
    return otherwise(owner, refused)
  end
  local lingering = 'linger:' .. owner
  local held, of = weight_of(owner)
  if held and linger == '0' then
    if holder then
      -- The next mutex overwrites it; else it is deleted.
      holder, leftover = false, true
    else
      drop(owner, held)
    end
  elseif held then
    if holder then
      -- The first write must be one that a server out of memory allows, as PEXPIRE. Then it allows
      -- SET.
      redis.call('PEXPIRE', name, linger)
    else
      drop(owner, held)
    end
    hold(lingering, held, of, linger)
  elseif weight_of(lingering) then
    return 1
  elseif not dequeue(owner) then
    return 0
  end
  serve()
  if leftover then
    redis.call('DEL', name, shares)
  end
  settle()
  return 1
end
