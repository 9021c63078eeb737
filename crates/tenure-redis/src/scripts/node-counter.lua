-- How a node counts, in place of fence.lua: each name by itself. After node-take.lua.

-- Here a number says nothing about the time.
local function age_of()
  return -1
end

local function raised(key)
  local floor, most = floor_of(memory, run, lasts, tonumber(redis.call('TIME')[1]))
  if not floor then
    return nil, most
  end
  local number, refused = counted(key, floor)
  if number then
    -- The next number is the grant's. `most` covers it.
    count(memory, key, number, most - 1)
  end
  return number, refused
end
