-- Acquires permits of a semaphore of Redisson. It makes the semaphore if there is none, with as many
-- permits as are asked to be there. The fence is the token of an RFencedLock of that name. After
-- redisson-token.lua and redisson-permits.lua.
--
-- KEYS[1] name   KEYS[2] ends   KEYS[3] token
-- ARGV[1] owner   ARGV[2] ttl, ms
-- ARGV[3] '1' if finding the owner in place is success: it was generated for this attempt
-- ARGV[4] the owner to take over from, '' for none
-- ARGV[5] weight   ARGV[6] capacity   ARGV[7] 'linger:' and the owner
-- ARGV[8] '1': only what it holds already   ARGV[9] channel   ARGV[10] publish with
-- reply   {1, token}                             granted, for the full ttl at least; token is a string
--         {0, owner, ttl in ms, weight, permits} busy; ttl -1: no end; permits: all that are known of
--         {0}                                    too few are free, and nobody is known to hold any

local name, ends, token, channel = KEYS[1], KEYS[2], KEYS[3], ARGV[9]
local owner, ttl, generated, from, lingering = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', ARGV[4], ARGV[7]
local weight, capacity = tonumber(ARGV[5]), tonumber(ARGV[6])
local now = now_ms()
local stored = redis.call('GET', name)
if stored and (not stored:match('^%-?%d+$') or #stored > 10) then
  return redis.error_reply('TENUREKIND it is no semaphore of Redisson')
end
collect(name, ends, channel, now)
local taken = redis.call('ZCARD', ends)
local free = stored and tonumber(redis.call('GET', name)) or capacity - taken
if free + taken > capacity then
  return redis.error_reply(string.format('TENUREKIND it is in use with a capacity of %d', free + taken))
end

local function busy()
  local first = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')
  if not first[1] then
    return { 0 }
  end
  local whose = first[1]:match('^(.*)#%d+$') or first[1]
  local till = tonumber(first[2])
  -- Redisson's mark of a permit without an end.
  local left = till < 922337203685477 and till - now or -1
  return { 0, whose, left, math.max(1, held_by(ends, whose)), math.max(0, free + taken) }
end

local held, theirs = held_by(ends, owner), from ~= '' and from ~= owner and held_by(ends, from) or 0
-- Redisson may have given a part of them back, by its own clock.
local torn = generated and held == 0 and weight > 1 and held_beyond(ends, owner, weight)
if torn or held > 0 and generated and weight > held then
  return redis.error_reply('TENUREMORE the owner holds fewer permits')
elseif held > 0 and not generated or held_by(ends, lingering) > 0 then
  return busy()
elseif held == 0 and theirs == 0 and (from ~= '' or ARGV[8] == '1' or free < weight) then
  return busy()
end
-- It is counted first: where that fails, nothing was taken.
local number, unfit = next_token(token)
if not number then
  return unfit
end
if held == 0 then
  weight = theirs > 0 and theirs or weight
end
-- A user who may not do all of it is refused before anything is taken.
redis.call('ZREM', ends, '')
redis.call('ZADD', ends, 'XX', 'GT', now, '')
if not stored then
  redis.call('SET', name, free)
end
redis.call('INCRBY', name, 0)
if held == 0 and theirs == 0 then
  redis.call('DECRBY', name, weight)
end
-- A repetition that runs late must not shorten a renewed lease.
for i = 1, weight do
  redis.call('ZADD', ends, 'GT', now + ttl, member(owner, i))
end
if held > weight then
  drop_permits(ends, owner, weight + 1, held)
  give_back(name, channel, held - weight)
elseif theirs > 0 then
  drop_permits(ends, from, 1, theirs)
end
keep_ends(ends, ttl)
return { 1, number }
