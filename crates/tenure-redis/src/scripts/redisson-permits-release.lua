-- Releases permits of a semaphore of Redisson, if they are still this owner's, and notifies the
-- waiters. Permits that linger are nobody's. After redisson-permits.lua.
--
-- KEYS[1] name   KEYS[2] ends
-- ARGV[1] owner, or the id of a permit of Redisson   ARGV[2] 'linger:' and the owner
-- ARGV[3] linger, ms, 0 for none   ARGV[4] channel   ARGV[5] number of its permits
-- ARGV[6] publish with
-- reply   1 released, now or before   0 not this owner's

local name, ends, owner, lingering, linger, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local kind = redis.call('TYPE', name).ok
if kind ~= 'string' and kind ~= 'none' then
  return 0
end
local now = now_ms()
collect(name, ends, channel, now)
-- A user who may not give them back is refused before they are gone. And the first write must be one
-- that a server out of memory allows.
redis.call('ZREM', ends, '')
if redis.call('EXISTS', name) == 1 then
  redis.call('INCRBY', name, 0)
end
local held, weight = held_by(ends, owner), tonumber(ARGV[5])
-- Redisson may have given a part of them back.
local torn = held < weight and held_beyond(ends, owner, weight)
if held == 0 and not torn and redis.call('ZREM', ends, owner) == 1 then
  give_back(name, channel, 1)
  return 1
elseif held == 0 and not torn then
  return held_by(ends, lingering) > 0 and 1 or 0
end
for number = 1, linger > 0 and held or 0 do
  redis.call('ZADD', ends, now + linger, member(lingering, number))
end
local dropped = drop_permits(ends, owner, 1, math.max(held, weight))
give_back(name, channel, linger == 0 and dropped or dropped - held)
return 1
