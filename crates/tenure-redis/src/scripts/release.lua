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
  local share, alone = held and not holder, false
  if share then
    -- Changes nothing. But it is a write that a server out of memory allows, and then it allows all that follow.
    redis.call('ZREM', name, lingering)
    alone = forgo(held)
    if linger ~= '0' then
      hold(lingering, held, of, linger)
    end
  elseif held and linger == '0' then
    -- The next mutex overwrites it; else it is deleted.
    holder, leftover = false, true
  elseif held then
    -- As with a share, the first write is allowed.
    redis.call('PEXPIRE', name, linger)
    hold(lingering, held, of, linger)
  elseif weight_of(lingering) then
    return 1
  elseif not dequeue(owner) then
    return 0
  end
  serve()
  if share then
    depart(owner, held, alone)
  elseif leftover then
    redis.call('DEL', name, shares)
  end
  settle()
  return 1
end
