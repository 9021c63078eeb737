-- Who holds a key that holds a point in time. After stamp.lua. Changes nothing.
--
-- KEYS[1] name    KEYS[2] what stands beside it
-- ARGV[1] unit
-- reply   {owner, left in ms}   -1: never ends
--         {}                    nobody's

local who, left, _, refused = look(KEYS[1], KEYS[2])
return refused or (who and { who, left } or {})
