-- Gives up a share or a place, if it is still this owner's, and serves those who wait. While a share lingers its value matches no
-- owner, so that no late renewal revives it. After release-free, keys, fence, holders and queue.
-- Called as `release(KEYS, ARGV)`.
--
-- ARGV[3] owner     ARGV[4] linger, ms, 0 for none
-- reply   1 given up, now or before   0 not this owner's

-- What there is to give up where the name is held as another kind, or holds something else: the owner is compared before the kind.
-- Whoever waits finds out when he looks.
local function otherwise(owner, refused)
  if not refused.err:find('WRONGTYPE', 1, true) and not refused.err:find('TENUREKIND', 1, true) then
    return refused
  end
  local stands = member_otherwise(owner)
  if stands == 'torn' then
    return redis.call('ZREM', name, owner)
  end
  return stands and refused or (leave(owner) and 1 or 0)
end

local function release(keys, args)
  local refused = begin(keys, args)
  local owner, linger = args[3], args[4]
  if refused then
    return otherwise(owner, refused)
  end
  local lingering = 'linger:' .. owner
  local held = weight_of(owner)
  if held and linger == '0' then
    if mutex then
      -- Whoever is served overwrites it.
      holder = false
    else
      drop(owner, held)
    end
  elseif held then
    if mutex then
      -- A server out of memory refuses SET as a script's first write; it does not refuse PEXPIRE, nor any write after that.
      redis.call('PEXPIRE', name, linger)
    else
      drop(owner, held)
    end
    hold(lingering, held, linger)
  elseif weight_of(lingering) then
    return 1
  elseif not leave(owner) then
    return 0
  end
  serve()
  if mutex and held and not holder then
    redis.call('DEL', name)
  end
  settle()
  return 1
end
