-- Asks for a key that holds an owner: whatever `SET NX` alone could not settle.
--
-- KEYS[1] name    string: the owner
-- ARGV[1] owner   ARGV[2] ttl, ms
-- ARGV[3] '1' when finding the owner in place is success
-- ARGV[4] the owner to take over from, '' for none
-- reply   1                     the owner's, for the full ttl at least
--         {value, ttl in ms}    another's; ttl -1: never ends
--         {}                    nobody's, and there was something to be taken over

local name, owner, ttl, from = KEYS[1], ARGV[1], ARGV[2], ARGV[4]
local value = redis.call('GET', name)
local left = value and redis.call('PTTL', name)
if value == owner and ARGV[3] == '1' then
  -- A repetition that runs late must not end what a renewal has prolonged.
  if left < tonumber(ttl) then
    redis.call('PEXPIRE', name, ttl)
  end
  return 1
end
-- Others may hold by an empty value, which is nobody to take over from.
local free = not value and from == ''
if free or (from ~= '' and value == from) then
  redis.call('SET', name, owner, 'PX', ttl)
  return 1
end
return value and { value, left } or {}
