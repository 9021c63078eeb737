-- Acquires a free mutex at a node, as most acquisitions do. First part of the acquisition, before
-- its other parts are defined. After node-ends and node.lua. Called as `take(KEYS, ARGV)`.
--
-- KEYS and ARGV as those of acquire.lua. KEYS[4] is the memory, KEYS[7] are the ends, see node.lua.
-- ARGV[13] run id of the server that the client knows
--
-- Returns {1, counter}, or nothing if the acquisition needs the other parts.

-- Of the request, for the other parts.
local run

local function take(keys, args)
  local memory = keys[4]
  run = args[13]
  local number, most = counted(memory, run, keys[1])
  if not number then
    return most
  end
  if args[1] ~= '1' or args[7] ~= '' or args[8] ~= 'none' then
    return nil
  end
  if not redis.call('SET', keys[1], args[3], 'PX', args[4], 'NX') then
    return nil
  end
  note_end(keys[7], keys[1], args[3], args[4])
  count(memory, keys[1], number + 1, most)
  return { 1, digits(number + 1) }
end
