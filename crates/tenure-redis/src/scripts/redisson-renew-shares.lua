-- Has each share that is still its owner's last at least its ttl from now. Never shortens one. After
-- redisson.lua and redisson-permits.lua.
--
-- KEYS    for each share two: of a reader the name and the key of its hold, of a writer the name twice, of
--         permits the key of their ends twice
-- ARGV    for each share its owner, its ttl in ms, and 'read', 'write' or the number of its permits
-- reply   1 or 0 for each

local function renew(name, beside, owner, ttl, what)
  local permits = tonumber(what)
  local is_writer = not permits and mode_of(name) == 'write' and redis.call('HEXISTS', name, owner .. ':write') == 1
  if is_writer then
    -- It may be about to become a reader.
    lengthen(name, ttl)
    return true
  elseif what == 'write' then
    return false
  elseif what == 'read' then
    local held = owner ~= 'mode' and redis.call('HEXISTS', name, owner) == 1 and redis.call('EXISTS', beside) == 1
    if held then
      lengthen(beside, ttl)
      lengthen(name, ttl)
    end
    return held
  end
  local now = now_ms()
  for number = 1, permits do
    local till = redis.call('ZSCORE', beside, member(owner, number))
    if not till or tonumber(till) <= now then
      return false
    end
  end
  keep_ends(beside, tonumber(ttl))
  for number = 1, permits do
    redis.call('ZADD', beside, 'XX', 'GT', now + tonumber(ttl), member(owner, number))
  end
  return true
end

local renewed = {}
for i = 1, #KEYS / 2 do
  local name, beside, what = KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i]
  local permits = tonumber(what)
  -- A key of another type is nobody's.
  local is_kind = redis.call('TYPE', permits and beside or name).ok == (permits and 'zset' or 'hash')
  renewed[i] = is_kind and renew(name, beside, ARGV[3 * i - 2], ARGV[3 * i - 1], what) and 1 or 0
end
return renewed
