-- How a node counts, in place of fence.lua: each name by itself. After node-take.lua and keys.lua.

-- Here a number says nothing about the time.
local function age_of()
  return -1
end

local function raised(memory)
  local number, most = counted(memory, run, name)
  if number then
    -- The next number is the grant's. `most` covers it.
    count(memory, name, number, most - 1)
  end
  return number, most
end

local function write_counter(memory, number)
  redis.call('HSET', memory, '=' .. name, digits(number))
end

local function read_counter(memory)
  return redis.call('HGET', memory, '=' .. name)
end
