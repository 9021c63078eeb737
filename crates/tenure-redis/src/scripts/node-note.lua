-- Replaces the note about a loss. After node.lua.
--
-- KEYS[1] memory   see node.lua
-- ARGV[1] the loss   ARGV[2] the note that stands   ARGV[3] the new one
-- reply   1, or 0 if it is another loss, another note, or the node votes

local known = redis.call('HMGET', KEYS[1], 'loss', 'note', 'floor')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] or known[3] then
  return 0
end
redis.call('HSET', KEYS[1], 'note', ARGV[3])
return 1
