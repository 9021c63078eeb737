-- Releases the keys of a name that are still this owner's. The value of a key that lingers matches no
-- owner, so no late renewal revives it.
--
-- KEYS    of the name
-- ARGV[1] owner   ARGV[2] linger, ms, 0 for none
-- reply   1 released, now or before   0 it was no majority

local owner, linger = ARGV[1], ARGV[2]
local lingering = 'linger:' .. owner
local values, held = {}, 0
for i, key in ipairs(KEYS) do
  values[i] = redis.pcall('GET', key)
  -- A key of another type is nobody's.
  if type(values[i]) == 'table' and not values[i].err:find('WRONGTYPE', 1, true) then
    return values[i]
  elseif values[i] == owner or values[i] == lingering then
    held = held + 1
  end
end
for i, key in ipairs(KEYS) do
  if values[i] == owner and linger == '0' then
    redis.call('DEL', key)
  elseif values[i] == owner then
    -- The first write must be one that a server out of memory allows, as PEXPIRE. Then it allows SET.
    redis.call('PEXPIRE', key, linger)
    redis.call('SET', key, lingering, 'PX', linger)
  end
end
return held > #KEYS / 2 and 1 or 0
