-- Has each lease of an RLock of Redisson that is still its owner's last at least its ttl from now.
-- Never shortens one: a holder counts on the end of its lease. A key of another type is nobody's.
--
-- KEYS    names
-- ARGV    owner and ttl in ms of each name, in turn
-- reply   1 or 0 for each name

local renewed = {}
for i, name in ipairs(KEYS) do
  local owner, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local fields = redis.pcall('HLEN', name)
  if type(fields) == 'table' and not fields.err:find('WRONGTYPE', 1, true) then
    return fields
  end
  -- With more fields it has become another object of Redisson.
  local held = fields == 1 and redis.call('HEXISTS', name, owner)
  if held == 1 and redis.call('PTTL', name) < tonumber(ttl) then
    redis.call('PEXPIRE', name, ttl)
  end
  renewed[i] = held == 1 and 1 or 0
end
return renewed
