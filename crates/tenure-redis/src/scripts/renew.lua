-- Has each lease of a mutex that is still its owner's last at least its ttl from now. Never
-- shortens one: a holder counts on the end of its lease. A key of another type is nobody's.
--
-- KEYS    names
-- ARGV    owner and ttl in ms of each name, in turn
-- reply   1 or 0 for each name

local values = redis.call('MGET', unpack(KEYS))
local renewed = {}
-- Redis 7 has one command for it.
local longer = redis.REDIS_VERSION_NUM ~= nil
for i, name in ipairs(KEYS) do
  local owner, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  if values[i] ~= owner then
    renewed[i] = 0
  else
    if longer then
      redis.call('PEXPIRE', name, ttl, 'GT')
    elseif redis.call('PTTL', name) < tonumber(ttl) then
      redis.call('PEXPIRE', name, ttl)
    end
    renewed[i] = 1
  end
end
return renewed
