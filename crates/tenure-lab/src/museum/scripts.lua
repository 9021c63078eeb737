-- The scripts of the stories, each behind its name.

-- set-new
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1

-- set-new-and-count
if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 0 end
return redis.call('INCR', ARGV[3])

-- delete-if
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])

-- delete-if-and-tell
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PUBLISH', KEYS[1], 'free') return redis.call('DEL', KEYS[1])

-- expire-if
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])

-- count-holds
local mine = redis.call('HEXISTS', KEYS[1], ARGV[1])
if (tonumber(ARGV[2]) > 0 and redis.call('HLEN', KEYS[1]) > mine) or (tonumber(ARGV[2]) < 0 and mine == 0) then return false end
local n = redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
if n > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) else redis.call('HDEL', KEYS[1], ARGV[1]) end
return n

-- enter-semaphore
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[3])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1]) return 1

-- take-in-turn
local queue, ends, me, now = KEYS[1] .. ':queue', KEYS[1] .. ':ends', ARGV[1], tonumber(ARGV[2])
local head = redis.call('LINDEX', queue, 0)
while head and tonumber(redis.call('ZSCORE', ends, head)) <= now do
  redis.call('LPOP', queue) redis.call('ZREM', ends, head)
  head = redis.call('LINDEX', queue, 0)
end
if redis.call('EXISTS', KEYS[1]) == 0 and (not head or head == me) then
  redis.call('LPOP', queue) redis.call('ZREM', ends, me)
  for _, other in ipairs(redis.call('LRANGE', queue, 0, -1)) do redis.call('ZINCRBY', ends, -ARGV[4], other) end
  redis.call('SET', KEYS[1], me, 'PX', ARGV[3]) return 1
end
if not redis.call('ZSCORE', ends, me) then
  local last = redis.call('LINDEX', queue, -1)
  local left = last and tonumber(redis.call('ZSCORE', ends, last)) - now or math.max(redis.call('PTTL', KEYS[1]), 0)
  redis.call('ZADD', ends, now + left + ARGV[4], me) redis.call('RPUSH', queue, me)
end
return 0

-- join-readers
if redis.call('TYPE', KEYS[1]).ok == 'string' then return 0 end
redis.call('SADD', KEYS[1], ARGV[1]) redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1

-- redisson-take-fenced
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local token = redis.call('INCR', ARGV[3])
redis.call('HINCRBY', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token

-- redisson-renew
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])

-- redisson-write
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'mode', 'write', ARGV[1] .. ':write', 1)
return redis.call('PEXPIRE', KEYS[1], ARGV[2])

-- redisson-read
local mode = redis.call('HGET', KEYS[1], 'mode')
if mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':write') == 0 then return 0 end
if not mode then redis.call('HSET', KEYS[1], 'mode', 'read') end
local hold = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('SET', '{' .. KEYS[1] .. '}:' .. ARGV[1] .. ':rwlock_timeout:' .. hold, 1, 'PX', ARGV[2])
return redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))

-- redisson-read-unlock
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local function hold_of(owner, number) return '{' .. KEYS[1] .. '}:' .. owner .. ':rwlock_timeout:' .. number end
local left = redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
if left == 0 then redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('DEL', hold_of(ARGV[1], left + 1))
local longest = 0
for _, owner in ipairs(redis.call('HKEYS', KEYS[1])) do
  for number = 1, tonumber(redis.call('HGET', KEYS[1], owner)) or 0 do
    longest = math.max(longest, redis.call('PTTL', hold_of(owner, number)))
  end
end
if longest > 0 then redis.call('PEXPIRE', KEYS[1], longest)
elseif redis.call('HGET', KEYS[1], 'mode') == 'read' then redis.call('DEL', KEYS[1]) end
return 1

-- redisson-take-permit
if tonumber(redis.call('GET', KEYS[1]) or 0) < 1 then return 0 end
redis.call('DECR', KEYS[1]) return 1
