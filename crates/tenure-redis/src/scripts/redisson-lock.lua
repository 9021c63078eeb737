-- Acquires an RLock of Redisson: a hash of one field, which is the owner; its value is the hold count.
-- The fence is the token of an RFencedLock. Prefix of other scripts, after redisson-token.lua and
-- redisson.lua.
--
-- `generated`: finding the owner in place is success. `from`: the owner to take over from, '' for
-- none. It returns the reply of redisson-acquire.lua.

local function acquire_lock(name, token, owner, ttl, generated, from)
  local mode = mode_of(name)
  if mode then
    if generated and (redis.call('HEXISTS', name, owner) + redis.call('HEXISTS', name, owner .. ':write') > 0) then
      return redis.error_reply('TENUREMORE the owner holds another share')
    end
    -- Redisson's own RLock waits here as well.
    local busy = busy_by(name, mode)
    if busy then
      return busy
    end
  end
  local fields = redis.call('HLEN', name)
  local holder = fields == 1 and redis.call('HKEYS', name)[1]
  if fields > 1 or holder == 'mode' then
    return redis.error_reply('TENUREKIND it is no RLock of Redisson')
  end
  local ours = holder == owner and generated
  local free = not holder and from == ''
  local theirs = from ~= '' and holder == from and holder ~= owner
  if not (ours or free or theirs) then
    return holder and { 0, holder, redis.call('PTTL', name), '' } or { 0 }
  end
  -- It is counted first: where that fails, nothing was taken.
  local number, unfit = next_token(token)
  if not number then
    return unfit
  end
  if ours then
    -- A repetition that runs late must not shorten a renewed lease.
    lengthen(name, ttl)
    return { 1, number }
  end
  -- A user who may not do all of it is refused before anything is taken: a hash without a ttl would stay.
  redis.call('PEXPIRE', name, theirs and math.max(1, redis.call('PTTL', name)) or ttl)
  redis.call('HDEL', name, '')
  redis.call('HINCRBY', name, owner, 1)
  if holder then
    redis.call('HDEL', name, holder)
  end
  redis.call('PEXPIRE', name, ttl)
  return { 1, number }
end
