-- Sets a value, unless a newer fence has written it. For the guarded data, not for locks.
--
-- KEYS: 1 the value, 2 its fence, of one slot
-- ARGV: 1 fence in decimal, 2 the value
-- Reply: 1, or 0 to a stale holder

local largest = redis.call('GET', KEYS[2]) or '0'
-- As text, because numbers of Lua are exact to 2^53 only.
if #largest > #ARGV[1] or (#largest == #ARGV[1] and largest > ARGV[1]) then
  return 0
end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return 1
