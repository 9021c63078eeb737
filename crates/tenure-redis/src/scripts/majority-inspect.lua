-- Who holds a majority of the keys of each name. After majority.lua.
--
-- KEYS    of each name, in turn
-- ARGV[1] number of names
-- reply   {value, ttl in ms} or {} for each name; ttl -1: no end

local each = #KEYS / tonumber(ARGV[1])
local answers = {}
for i = 1, tonumber(ARGV[1]) do
  local failed, _, _, holder, left = look_at({ unpack(KEYS, each * (i - 1) + 1, each * i) })
  answers[i] = failed or holder and { holder, left } or {}
end
return answers
