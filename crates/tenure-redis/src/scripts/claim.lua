-- Takes a name, finds it taken by this owner already, or takes it over: whatever the fast path could not settle.
--
-- KEYS[1] name      KEYS[2] counter
-- ARGV[1] owner     ARGV[2] ttl, ms
-- ARGV[3] '1' when finding ARGV[1] in place is success
-- ARGV[4] the owner to take over from, '' for none
-- ARGV[5] the largest counter this client has seen here
-- reply   {1, counter}           the owner's now, for the full ttl at least
--         {0, value, ttl in ms}  another's; ttl -1: never ends
--         {0}                    free, where it was to be taken over

local owner, ttl, from = ARGV[1], ARGV[2], ARGV[4]
local value = redis.call('GET', KEYS[1])
local mine = value == owner and ARGV[3] == '1'
local handed = from ~= '' and value == from
local free = not value and from == ''
if not (mine or handed or free) then
  if not value then
    return {0}
  end
  return {0, value, redis.call('PTTL', KEYS[1])}
end

local floor, refused = lifted(KEYS[2], ARGV[5])
if not floor then
  return refused
end
if mine then
  -- A repetition that runs late must not end what a renewal has prolonged.
  ttl = math.max(tonumber(ttl), redis.call('PTTL', KEYS[1]))
end
local counter = digits(floor + 1)
redis.call('SET', KEYS[2], counter)
redis.call('SET', KEYS[1], owner, 'PX', ttl)
return {1, counter}
