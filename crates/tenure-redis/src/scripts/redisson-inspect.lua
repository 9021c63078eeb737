-- Who holds a lock of Redisson, and who waits. After redisson.lua, redisson-queue.lua and
-- redisson-permits.lua.
--
-- KEYS[1] name   KEYS[2] as KEYS[3] of redisson-acquire.lua
-- ARGV[1] ends of permits   ARGV[2] queue   ARGV[3] when its waiters are due. One who may not read them
-- sees the rest
-- ARGV[4] '1': other keys may be elsewhere, so only what KEYS[1] says alone
-- reply   {holders, waiters}: the waiters are their owners, and the holders
--         {}                                free
--         {'lock', owner, ttl in ms}        an RLock
--         {'read', owner, ttl in ms, ...}   an RReadWriteLock with these readers
--         {'write', owner, ttl in ms}       the same with this writer
--         {permits, id, ttl in ms, ...}     a semaphore of so many permits, as far as is known
--         ttl -1: no end

local function holders_of(name, ends)
  local kind = redis.call('TYPE', name).ok
  if kind == 'none' and redis.pcall('EXISTS', ends) ~= 1 then
    return {}
  elseif kind == 'string' or kind == 'none' then
    -- Who deletes a semaphore leaves its permits.
    local free = redis.call('GET', name) or '0'
    if not free:match('^%-?%d+$') or #free > 10 then
      return redis.error_reply('TENUREKIND it is no semaphore of Redisson')
    end
    local now, taken = now_ms(), redis.call('ZRANGE', ends, 0, -1, 'WITHSCORES')
    local found = { math.max(0, tonumber(free) + #taken / 2) }
    for i = 1, #taken, 2 do
      local left = tonumber(taken[i + 1]) - now
      if left > 0 then
        found[#found + 1] = taken[i]
        found[#found + 1] = tonumber(taken[i + 1]) < 922337203685477 and left or -1
      end
    end
    return found
  end
  local mode, left = mode_of(name), redis.call('PTTL', name)
  if mode == 'write' or mode and left == -1 then
    return { mode, one_of(name, mode), left }
  elseif mode == 'read' then
    local found = { mode }
    for _, owner in ipairs(redis.call('HKEYS', name)) do
      local its = owner ~= 'mode' and left_of(name, owner) or 0
      if its ~= 0 then
        found[#found + 1] = owner
        found[#found + 1] = its
      end
    end
    return #found > 1 and found or {}
  end
  -- Of a large hash nothing is read.
  local holder = redis.call('HLEN', name) == 1 and redis.call('HGETALL', name)
  if not holder or holder[1] == 'mode' or not holder[2]:match('^%d+$') then
    return redis.error_reply('TENUREKIND it is no lock of Redisson')
  end
  return { 'lock', holder[1], left }
end

if ARGV[4] == '1' and (redis.call('TYPE', KEYS[1]).ok ~= 'hash' or mode_of(KEYS[1]) == 'read') then
  return redis.error_reply('TRYAGAIN it has keys that may be elsewhere')
end
local holders, waiters = holders_of(KEYS[1], ARGV[1]), {}
if holders.err or ARGV[4] == '1' then
  return holders.err and holders or { holders, waiters }
end
for _, owner in ipairs(redis.pcall('LRANGE', ARGV[2], 0, -1)) do
  if not has_lapsed(KEYS[1], ARGV[3], owner) then
    waiters[#waiters + 1] = owner
  end
end
return { holders, waiters }
