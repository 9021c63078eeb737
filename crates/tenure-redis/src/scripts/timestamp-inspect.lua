-- Returns the holder of a key that holds a timestamp value. After timestamp.lua. Changes nothing.
--
-- KEYS[1] name    KEYS[2] its owner
-- ARGV[1] unit
-- reply   {owner, left in ms}   -1: no end
--         {}                    free

local who, left, _, refused = read(KEYS[1], KEYS[2])
return refused or (who and { who, left } or {})
