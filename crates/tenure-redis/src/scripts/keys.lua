-- What the scripts about one name are called with. Prefix of other scripts.
--
-- KEYS[1] name      string: the owner of a mutex; or sorted set: owner -> end of the lease, ms of this server's clock
-- KEYS[2] queue     sorted set: owner -> ticket, of those who wait; tickets rise
-- KEYS[3] places    hash: owner -> 'end claim keep weight capacity channel', times in ms
-- KEYS[4] counter   string: the grant counter
-- KEYS[5] shares    hash: '=' and owner -> weight where that is not 1; '#': all weights together, '##': the capacity.
--                   Not for a mutex that is given up.
-- ARGV[1] capacity  how much of the name there is; 1: a mutex
-- ARGV[2] the largest counter this client has seen here

local name, queue, places, counter, shares = unpack(KEYS)
local capacity, seen = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- How many living, and how many dead, one call sees to. The next call goes on.
local AT_ONCE, DEAD_AT_ONCE = 128, 1000

-- Has two keys that are kept together live as long as the last of what is in them.
local function outlive(key, other, ms)
  if redis.call('PTTL', key) < tonumber(ms) then
    redis.call('PEXPIRE', key, ms)
    redis.call('PEXPIRE', other, ms)
  end
end
