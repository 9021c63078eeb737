-- Renews leases at a node of a quorum that votes, and notes their ends. `renew` is renew.lua or
-- renew-shares.lua, `STEP` the number of its keys for each lease. After node-ends.
--
-- KEYS[1] memory   KEYS[2] ends   see node.lua; then the keys of `renew`
-- ARGV[1] run id of the server that the client knows; then the arguments of `renew`
-- reply   that of `renew`, and 0 for a lease that is not noted

local ends = KEYS[2]
local known = redis.call('HMGET', KEYS[1], 'run', 'floor')
if known[1] ~= ARGV[1] or not known[2] then
  return redis.error_reply('TENURELOST the node does not vote')
end
forget_ended(ends)
local renewed, asked, keys, args = {}, {}, {}, {}
for i = 1, (#ARGV - 1) / 2 do
  local at, owner = 3 + (i - 1) * STEP, ARGV[2 * i]
  renewed[i] = 0
  if redis.call('ZSCORE', ends, noted_as(KEYS[at], owner)) then
    table.insert(asked, i)
    for key = at, at + STEP - 1 do
      table.insert(keys, KEYS[key])
    end
    table.insert(args, owner)
    table.insert(args, ARGV[2 * i + 1])
  end
end
local answers = #asked > 0 and renew(keys, args) or {}
if answers.err then
  return answers
end
for at, i in ipairs(asked) do
  local name, owner, ttl = keys[1 + (at - 1) * STEP], args[2 * at - 1], args[2 * at]
  renewed[i] = answers[at]
  if renewed[i] == 1 then
    note_end(ends, name, owner, ttl)
  else
    forget_end(ends, name, owner)
  end
end
return renewed
