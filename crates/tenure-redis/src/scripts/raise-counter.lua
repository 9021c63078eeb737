-- Raises the grant counter before a grant that follows in the same pipeline.
--
-- KEYS[1] counter
-- ARGV[1] the largest counter this client has seen here
-- reply   the counter, as a string

local floor, refused = raised(KEYS[1], ARGV[1], redis.call('TIME'))
if not floor then
  return refused
end
local counter = digits(floor)
redis.call('SET', KEYS[1], counter)
return counter
