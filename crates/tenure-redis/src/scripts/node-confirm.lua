-- Has a node count on from a fence, if its owner holds there and the counter is not above it. After
-- node.lua. Called as `confirm(KEYS, ARGV)`.
--
-- KEYS[1] name   KEYS[2] counter of the name   KEYS[3] memory   see node.lua
-- ARGV[1] owner   ARGV[2] counter of the fence   ARGV[3] run id   ARGV[4] ttl, ms
-- reply   {1} it counts on from there   {2, counter} it has counted further   {0} the owner does not hold

local function confirm(keys, args)
  local time = redis.call('TIME')
  local value = redis.pcall('GET', keys[1])
  local holds = value == args[1]
  if type(value) == 'table' then
    if not value.err:find('WRONGTYPE', 1, true) then
      return value
    end
    local till = redis.pcall('ZSCORE', keys[1], args[1])
    holds = type(till) == 'string' and tonumber(till) > tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
  end
  if not holds then
    return { 0 }
  end
  local floor, most = floor_of(keys[3], args[3], args[4], tonumber(time[1]))
  if not floor then
    return most
  end
  local number, refused = counted(keys[2], floor)
  if not number then
    return refused
  end
  local fence = tonumber(args[2])
  if number > fence then
    return { 2, digits(number) }
  end
  if number == floor + 1 then
    -- Nobody has used the name here before: the floor of others is higher. Then they agree with this
    -- node about the next new name.
    redis.call('HSET', keys[3], 'floor', digits(fence - 1))
  end
  count(keys[3], keys[2], fence, most)
  return { 1 }
end
