-- Sets each lease that is still its owner's back to its full ttl. A name of another type reads as nobody's.
--
-- KEYS    names
-- ARGV    owner and ttl in ms of each name, in turn
-- reply   1 or 0 for each name

local values = redis.call('MGET', unpack(KEYS))
local renewed = {}
for i, name in ipairs(KEYS) do
  if values[i] == ARGV[2 * i - 1] then
    renewed[i] = redis.call('PEXPIRE', name, ARGV[2 * i])
  else
    renewed[i] = 0
  end
end
return renewed
