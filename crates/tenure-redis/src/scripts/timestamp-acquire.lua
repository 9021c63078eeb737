-- Acquires a key that holds a timestamp value. After timestamp.lua.
--
-- KEYS[1] name    KEYS[2] its owner
-- ARGV[1] unit    ARGV[2] the clock of this client, ms, '' if no client's clock matters
-- ARGV[3] owner   ARGV[4] ttl, ms
-- ARGV[5] '1' if finding the owner in place is success: it was generated for this attempt
-- ARGV[6] the owner to take over from, '' for none
-- reply   1                     granted, for the full ttl at least
--         {owner, left in ms}   busy; -1: no end
--         {}                    free, and `from` does not hold it
--
-- A PHP lock whose holder died between SETNX and EXPIRE has no ttl. Its value is the time when it
-- was to end. The lock can be taken over from then on, but not before it was seen without a ttl for
-- WITHOUT_TTL ms. When that was first seen is noted at the key of the owner, as `<value>\n<time>`.

local WITHOUT_TTL = 5000
local name, beside = KEYS[1], KEYS[2]
local owner, ttl, from = ARGV[3], ARGV[4], ARGV[6]
local who, left, value, refused = read(name, beside)
if refused then
  return refused
elseif who == owner and ARGV[5] == '1' then
  prolong(name, beside, who, ttl, left, value)
  return 1
end

-- Time in ms until a lock without a ttl may be taken over. -1: never.
local function until_takeover()
  local due = point(value)
  if not due then
    return -1
  end
  local noted = redis.call('GET', beside) or ''
  local since = noted:sub(1, #value + 1) == value .. '\n' and tonumber(noted:sub(#value + 2)) or now
  due = math.max(due, since + WITHOUT_TTL * 1000)
  if due > now then
    redis.call('SET', beside, value .. '\n' .. digits(since), 'PX', digits((due - now) / 1000 + 60000))
  end
  return math.max(0, math.ceil((due - now) / 1000))
end

if unit == 'php' and who == value and left == -1 and from == '' then
  left = until_takeover()
  who = left ~= 0 and who or nil
end
local free = not who and from == ''
if free or (from ~= '' and who == from) then
  local apart = ARGV[2] ~= '' and now / 1000 - tonumber(ARGV[2]) or 0
  if math.abs(apart) > tonumber(ttl) / 3 then
    local side = apart > 0 and ' s ahead of' or ' s behind'
    return redis.error_reply('TENURECLOCK the server is ' .. string.format('%.1f', math.abs(apart) / 1000) .. side .. ' this host')
  end
  put(name, beside, owner, ttl, value)
  return 1
end
return who and { who, left } or {}
