-- Acquires a free mutex at a node, as most acquisitions do. First part of the acquisition, before
-- its other parts are defined. After node.lua.
--
-- KEYS and ARGV as those of acquire.lua. KEYS[4] is the counter of the name.
-- KEYS[6] memory   see node.lua
-- ARGV[13] run id of the server that the client knows
--
-- Returns {1, counter}, or nothing if the acquisition needs the other parts.

local taken = (function()
  local seconds = tonumber(redis.call('TIME')[1])
  local floor, most = floor_of(KEYS[6], ARGV[13], ARGV[4], seconds)
  if not floor then
    return most
  end
  if ARGV[1] ~= '1' or ARGV[7] ~= '' or ARGV[8] ~= 'none' then
    return nil
  end
  local number, refused = counted(KEYS[4], floor)
  if not number then
    return refused
  end
  if not redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4], 'NX') then
    return nil
  end
  count(KEYS[6], KEYS[4], number + 1, most)
  return { 1, digits(number + 1) }
end)()
if taken then
  return taken
end
