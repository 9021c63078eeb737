-- Renews leases at a node of a quorum that votes, and notes their ends. `renew` is renew.lua or
-- renew-shares.lua, `STEP` the number of its keys for each lease. After node-ends.
--
-- KEYS[1] memory   KEYS[2] ends   see node.lua; then the keys of `renew`
-- ARGV[1] run id of the server that the client knows; then owner and ttl of each lease, and the weight of a share, in turn
-- reply   that of `renew`, and 0 for a lease that is not noted

local ends = KEYS[2]
local known = redis.call('HMGET', KEYS[1], 'run', 'floor')
if known[1] ~= ARGV[1] or not known[2] then
  return redis.error_reply('TENURELOST the node does not vote')
end

-- Makes a share as small as its holder says. A downgrade may have missed this node.
local function shrink(shares, owner, weight)
  local more = tonumber(redis.call('HGET', shares, '=' .. owner) or '1') - tonumber(weight)
  if more <= 0 then
    return
  end
  redis.call('HINCRBY', shares, '#', string.format('%.0f', -more))
  if weight == '1' then
    redis.call('HDEL', shares, '=' .. owner)
  else
    redis.call('HSET', shares, '=' .. owner, weight)
  end
end

forget_ended(ends)
local renewed, asked, keys, args = {}, {}, {}, {}
-- The arguments of a lease are one more than its keys.
local function of_lease(i)
  return 3 + (i - 1) * STEP, 2 + (i - 1) * (STEP + 1)
end
for i = 1, (#ARGV - 1) / (STEP + 1) do
  local key, arg = of_lease(i)
  renewed[i] = 0
  if redis.call('ZSCORE', ends, noted_as(KEYS[key], ARGV[arg])) then
    table.insert(asked, i)
    for at = key, key + STEP - 1 do
      table.insert(keys, KEYS[at])
    end
    table.insert(args, ARGV[arg])
    table.insert(args, ARGV[arg + 1])
  end
end
local answers = #asked > 0 and renew(keys, args) or {}
if answers.err then
  return answers
end
for at, i in ipairs(asked) do
  local key, arg = of_lease(i)
  local name, owner = KEYS[key], ARGV[arg]
  renewed[i] = answers[at]
  if renewed[i] == 1 then
    note_end(ends, name, owner, ARGV[arg + 1])
    if STEP == 2 then
      shrink(KEYS[key + 1], owner, ARGV[arg + 2])
    end
  else
    forget_end(ends, name, owner)
  end
end
return renewed
