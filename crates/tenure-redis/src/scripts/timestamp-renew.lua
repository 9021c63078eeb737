-- Has each lease that is still its owner's last at least its ttl from now. After timestamp.lua. A
-- key that holds something else is nobody's.
--
-- KEYS    each name and its owner, in turn
-- ARGV[1] unit
-- ARGV    owner and ttl in ms of each name, in turn
-- reply   1 or 0 for each name

local renewed = {}
for i = 1, #KEYS / 2 do
  local name, beside, owner, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i], ARGV[2 * i + 1]
  local who, left, value = read(name, beside)
  renewed[i] = who == owner and 1 or 0
  if who == owner then
    prolong(name, beside, who, ttl, left, value)
  end
end
return renewed
