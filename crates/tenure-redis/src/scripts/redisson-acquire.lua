-- Acquires an RLock of Redisson: a hash of one field, which is the owner; its value is the hold count.
-- The fence is the token of an RFencedLock, raised to the clock: else it would begin anew at a server
-- that has lost its data. After fence.lua and redisson.lua.
--
-- KEYS[1] name   KEYS[2] token   string: the token of the last acquisition
-- ARGV[1] owner   ARGV[2] ttl, ms
-- ARGV[3] '1' if finding the owner in place is success: it was generated for this attempt
-- ARGV[4] the owner to take over from, '' for none
-- reply   {1, token}                   granted, for the full ttl at least; token is a string
--         {0, owner, ttl in ms, mode}  busy; ttl -1: no end; mode of an RReadWriteLock, '' of an RLock
--         {0}                          free, and `from` does not hold it

local name, token, owner, ttl, from = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[4]
local mode = mode_of(name)
if mode then
  if ARGV[3] == '1' and (redis.call('HEXISTS', name, owner) + redis.call('HEXISTS', name, owner .. ':write') > 0) then
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
local ours = holder == owner and ARGV[3] == '1'
local free = not holder and from == ''
local theirs = from ~= '' and holder == from and holder ~= owner
if not (ours or free or theirs) then
  return holder and { 0, holder, redis.call('PTTL', name), '' } or { 0 }
end
-- It is counted first: where that fails, nothing was taken.
local number, unfit = raised(token, 0, redis.call('TIME'))
if not number then
  return unfit
end
number = number + 1
write_counter(token, number)
if ours then
  -- A repetition that runs late must not shorten a renewed lease.
  lengthen(name, ttl)
  return { 1, digits(number) }
end
-- A user who may not do all of it is refused before anything is taken: a hash without a ttl would stay.
redis.call('PEXPIRE', name, theirs and math.max(1, redis.call('PTTL', name)) or ttl)
redis.call('HDEL', name, '')
redis.call('HINCRBY', name, owner, 1)
if holder then
  redis.call('HDEL', name, holder)
end
redis.call('PEXPIRE', name, ttl)
return { 1, digits(number) }
