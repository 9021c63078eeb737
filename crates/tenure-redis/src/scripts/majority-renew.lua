-- Has each lease whose owner holds a majority of its keys last at least its ttl from now, at all of
-- them that nobody else holds. Never shortens one.
--
-- KEYS    of each name, in turn
-- ARGV    owner and ttl in ms of each name, in turn
-- reply   1 or 0 for each name

local each = 2 * #KEYS / #ARGV
local renewed = {}
for i = 1, #ARGV / 2 do
  local owner, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local held, free = {}, {}
  for at = each * (i - 1) + 1, each * i do
    local value = redis.pcall('GET', KEYS[at])
    if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then
      return value
    elseif value == owner then
      table.insert(held, KEYS[at])
    elseif not value then
      table.insert(free, KEYS[at])
    end
  end
  renewed[i] = #held > each / 2 and 1 or 0
  if renewed[i] == 1 then
    for _, key in ipairs(held) do
      if redis.call('PTTL', key) < tonumber(ttl) then
        redis.call('PEXPIRE', key, ttl)
      end
    end
    -- A majority is held without them.
    for _, key in ipairs(free) do
      redis.pcall('SET', key, owner, 'PX', ttl)
    end
  end
end
return renewed
