-- As renew.lua, for shares. They are in sorted sets: owner -> end of the lease, ms of this server's
-- clock.
--
-- KEYS    name and shares (see keys.lua) of each lease, in turn; a name may come often
-- ARGV    owner and ttl in ms of each lease, in turn
-- reply   1 or 0 for each lease

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local renewed, longest = {}, {}

-- Whether the hash beside the name is there. Without it nobody can acquire, so no lease is renewed.
local whole = {}
local function is_whole(name, shares)
  if whole[name] == nil then
    whole[name] = redis.call('EXISTS', shares) == 1
  end
  return whole[name]
end

-- The first write must be one that a server out of memory allows, as ZREM. Then it allows ZADD.
redis.pcall('ZREM', KEYS[1], '')
for i = 1, #KEYS, 2 do
  local name, owner, ttl = KEYS[i], ARGV[i], tonumber(ARGV[i + 1])
  local till = redis.pcall('ZSCORE', name, owner)
  if type(till) == 'table' and not till.err:find('WRONGTYPE', 1, true) then
    return till
  end
  local lives = type(till) == 'string' and tonumber(till) > now and is_whole(name, KEYS[i + 1])
  if lives and tonumber(till) < now + ttl then
    redis.call('ZADD', name, string.format('%.0f', now + ttl), owner)
  end
  if lives then
    longest[i] = ttl
  end
  table.insert(renewed, lives and 1 or 0)
end
-- The keys live as long as the last lease in them.
local done = {}
for i, ttl in pairs(longest) do
  local name = KEYS[i]
  if (done[name] or 0) < ttl then
    done[name] = ttl
    for at = i, i + 1 do
      if redis.call('PTTL', KEYS[at]) < ttl then
        redis.call('PEXPIRE', KEYS[at], ttl)
      end
    end
  end
end
return renewed
