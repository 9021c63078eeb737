-- Acquires a key that holds an owner, if `SET NX` alone was not enough.
--
-- KEYS[1] name    string: the owner
-- ARGV[1] owner   ARGV[2] ttl, ms
-- ARGV[3] '1' if finding the owner in place is success: it was generated for this attempt
-- ARGV[4] the owner to take over from, '' for none
-- reply   1                     granted, for the full ttl at least
--         {value, ttl in ms}    busy; ttl -1: no end
--         {}                    free, and `from` does not hold it

local name, owner, ttl, from = KEYS[1], ARGV[1], ARGV[2], ARGV[4]
local value = redis.call('GET', name)
local left = value and redis.call('PTTL', name)
if value == owner and ARGV[3] == '1' then
  -- A repetition that runs late must not shorten a renewed lease.
  if left < tonumber(ttl) then
    redis.call('PEXPIRE', name, ttl)
  end
  return 1
end
-- Other clients may hold by an empty value.
local free = not value and from == ''
if free or (from ~= '' and value == from) then
  redis.call('SET', name, owner, 'PX', ttl)
  return 1
end
return value and { value, left } or {}
