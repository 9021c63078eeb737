-- Releases an RLock of Redisson, if it is still this owner's, and notifies its waiters. After
-- redisson-unlock.lua and redisson-publish.lua.
--
-- KEYS[1] name
-- ARGV[1] owner   ARGV[2] 'linger:' and the owner   ARGV[3] linger, ms, 0 for none
-- ARGV[4] channel: no key, so that one who may not use it releases all the same   ARGV[5] publish with
-- reply   1 released, now or before   0 not this owner's

local name, owner, lingering, linger, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local reply, done = unlock(name, owner, lingering, linger)
if done then
  -- Those who wait look how long it is taken now.
  publish(channel, '0')
end
return reply
