-- Releases permits of a semaphore of Redisson, if they are still this owner's, and notifies the
-- waiters. Permits that linger are nobody's. After redisson-permits.lua.
--
-- KEYS[1] name   KEYS[2] channel   KEYS[3] ends
-- ARGV[1] owner, or the id of a permit of Redisson   ARGV[2] 'linger:' and the owner
-- ARGV[3] linger, ms, 0 for none
-- reply   1 released, now or before   0 not this owner's

local name, channel, ends, owner, lingering, linger = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], tonumber(ARGV[3])
local kind = redis.call('TYPE', name).ok
if kind ~= 'string' and kind ~= 'none' then
  return 0
end
local now = now_ms()
collect(name, ends, channel, now)
local held = held_by(ends, owner)
if held == 0 and redis.call('ZREM', ends, owner) == 1 then
  give_back(name, channel, 1)
  return 1
elseif held == 0 then
  return held_by(ends, lingering) > 0 and 1 or 0
end
for number = 1, linger > 0 and held or 0 do
  redis.call('ZADD', ends, now + linger, member(lingering, number))
end
drop_permits(ends, owner, 1, held)
if linger == 0 then
  give_back(name, channel, held)
end
return 1
