-- Has a node count on from a fence, if its owner holds there and the counter is not above it. After
-- node.lua. Called as `confirm(KEYS, ARGV)`.
--
-- KEYS[1] name   KEYS[2] memory   see node.lua
-- ARGV[1] owner   ARGV[2] counter of the fence   ARGV[3] identity of the server
-- reply   {1} it counts on from there   {2, counter} it has counted further   {0} the owner does not hold
--
-- Only one can hold a mutex, so what the counter of its node says is for that one. Of several readers
-- another may have been granted it meanwhile. So a reader asks for a larger one.

local function confirm(keys, args)
  local value = redis.pcall('GET', keys[1])
  local holds = value == args[1]
  local is_shared = type(value) == 'table'
  if is_shared then
    if not value.err:find('WRONGTYPE', 1, true) then
      return value
    end
    local till, time = redis.pcall('ZSCORE', keys[1], args[1]), redis.call('TIME')
    holds = type(till) == 'string' and tonumber(till) > tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
  end
  if not holds then
    return { 0 }
  end
  local number, most, floor = counted(keys[2], args[3], keys[1])
  if not number then
    return most
  end
  local fence = tonumber(args[2])
  if is_shared and number == fence then
    number = number + 1
    count(keys[2], keys[1], number, most)
  end
  if number > fence then
    return { 2, digits(number) }
  end
  if number == floor + 1 then
    -- Nobody has used the name here before: the floor of others is higher. Then they agree with this
    -- node about the next new name.
    redis.call('HSET', keys[2], 'floor', digits(fence - 1))
  end
  count(keys[2], keys[1], fence, most)
  return { 1 }
end
