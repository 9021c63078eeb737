-- Acquires a share of an RReadWriteLock of Redisson. A writer's field is its owner and ':write'. The
-- fence is the token of an RFencedLock of that name. After redisson-token.lua and redisson.lua.
--
-- KEYS[1] name   KEYS[2] token   KEYS[3] key of the owner's hold, of a reader   KEYS[4] as KEYS[3] of redisson-acquire.lua
-- ARGV[1] owner   ARGV[2] ttl, ms
-- ARGV[3] '1' if finding the owner in place is success: it was generated for this attempt
-- ARGV[4] the owner to take over from, '' for none
-- ARGV[5] 'read' or 'write'   ARGV[6] 'linger:' and the owner
-- ARGV[7] '1': only what it holds already   ARGV[8] channel of the read/write lock   ARGV[9] publish with
-- reply   as redisson-acquire.lua

local name, token, hold = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, generated, from, want, lingering = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], ARGV[5], ARGV[6]
local writer = owner .. ':write'
local mode = mode_of(name)
local fields = redis.call('HLEN', name)
if not mode and fields > 0 then
  local holder = redis.call('HKEYS', name)[1]
  if fields > 1 or holder == 'mode' then
    return redis.error_reply('TENUREKIND it is no lock of Redisson')
  end
  -- Redisson would make two holders here.
  if holder == owner and generated then
    return redis.error_reply('TENUREMORE the owner holds another share')
  end
  return { 0, holder, redis.call('PTTL', name), '' }
end

local function is_reader(of)
  return mode == 'read' and of ~= 'mode' and redis.call('HEXISTS', name, of) == 1 and left_of(name, of) ~= 0
end
local function is_writer(of)
  return mode == 'write' and redis.call('HEXISTS', name, of .. ':write') == 1
end

-- A user who may not do all of it is refused before anything is taken: a hash without a ttl would stay.
-- Its hash lasts at least as long as each of its holds.
local function take()
  local left = redis.call('PTTL', name)
  if want == 'read' then
    redis.call('SET', hold, 1, 'PX', ttl)
  end
  redis.call('PEXPIRE', name, left > 0 and left or ttl)
  if not mode then
    redis.call('HDEL', name, '')
  end
  redis.call('HSET', name, 'mode', want, want == 'read' and owner or writer, 1)
  redis.call('PEXPIRE', name, want == 'read' and math.max(left, ttl) or ttl)
end

local holds_read, holds_write = is_reader(owner), is_writer(owner)
if generated and (holds_read or holds_write) then
  if want == 'write' and holds_read then
    return redis.error_reply('TENUREMORE the owner holds another share')
  end
  local number, unfit = next_token(token)
  if not number then
    return unfit
  elseif want == 'read' and holds_write then
    local left = redis.call('PTTL', name)
    redis.call('SET', hold, 1, 'PX', math.max(left, ttl))
    redis.call('HSET', name, 'mode', 'read', owner, 1)
    redis.call('HDEL', name, writer)
    -- Redisson says nothing here, and its readers sleep on.
    publish(ARGV[8], '1')
  elseif want == 'read' then
    lengthen(hold, ttl)
  end
  -- A repetition that runs late must not shorten a renewed lease.
  lengthen(name, ttl)
  return { 1, number }
end

local keeps_out = holds_read or holds_write or is_reader(lingering) or mode and redis.call('PTTL', name) == -1
local takes_over = not keeps_out and from ~= '' and from ~= owner
  and (is_writer(from) or want == 'read' and is_reader(from))
local joins = not keeps_out and from == '' and ARGV[7] ~= '1' and (not mode or mode == 'read' and want == 'read')
if not (takes_over or joins) then
  local busy = mode and busy_by(name, mode)
  -- Its readers may have ended.
  if busy or keeps_out or from ~= '' or ARGV[7] == '1' then
    return busy or { 0 }
  end
end
-- It is counted first: where that fails, nothing was taken.
local number, unfit = next_token(token)
if not number then
  return unfit
end
-- A writer that is taken over as a reader was to become one.
local was_reader = takes_over and is_reader(from)
take()
if was_reader then
  drop_reader(name, from)
elseif takes_over then
  redis.call('HDEL', name, from .. ':write')
end
return { 1, number }
