-- Lets a node vote that has waited. After node.lua.
--
-- It counts on from what the others have counted, and from its clock at least: if too many have
-- lost their data, nobody knows more.
--
-- KEYS[1] memory   see node.lua
-- ARGV[1] the loss   ARGV[2] the largest counter of the others
-- ARGV[3] if all are new, the losses of the others that do not vote
-- reply   1, or 0 if it is another loss, or the node votes

local EPOCH = 1767225600

local known = redis.call('HMGET', KEYS[1], 'loss', 'floor')
if known[1] ~= ARGV[1] or known[2] then
  return 0
end
local time = redis.call('TIME')
local micros = math.max(0, (tonumber(time[1]) - EPOCH) * 1000000 + tonumber(time[2]))
local floor = math.max(tonumber(ARGV[2]), micros < MOST / 2 and micros or 0)
redis.call('HSET', KEYS[1], 'floor', digits(floor), 'most', digits(floor), 'turned', time[1])
redis.call('HSET', KEYS[1], 'new', ARGV[3])
redis.call('HDEL', KEYS[1], 'note', 'copy')
return 1
