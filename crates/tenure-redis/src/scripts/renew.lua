-- Makes each lease that is still its owner's last at least its ttl from now. Never shortens one: a renewal that runs late must not
-- end what its holder believes. A name of another type reads as nobody's.
--
-- KEYS    names
-- ARGV    owner and ttl in ms of each name, in turn
-- reply   1 or 0 for each name

local values = redis.call('MGET', unpack(KEYS))
local renewed = {}
for i, name in ipairs(KEYS) do
  if values[i] == ARGV[2 * i - 1] then
    if redis.call('PTTL', name) < tonumber(ARGV[2 * i]) then
      redis.call('PEXPIRE', name, ARGV[2 * i])
    end
    renewed[i] = 1
  else
    renewed[i] = 0
  end
end
return renewed
