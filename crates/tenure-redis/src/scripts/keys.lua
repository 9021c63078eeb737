-- What the scripts about names are called with. Prefix of other scripts.
--
-- KEYS[1] name      string: the owner of a mutex; or sorted set: owner -> end of the lease, ms of this server's clock
-- KEYS[2] queue     sorted set: owner -> ticket, of those who wait; tickets rise
-- KEYS[3] places    hash: owner -> 'end claim keep weight capacity channel', times in ms
-- KEYS[4] counter   string: the grant counter
-- KEYS[5] shares    hash: '=' and owner -> weight where that is not 1; '#': all weights together, '##': the capacity.
--                   Not for a mutex that is given up.
-- ARGV[1] capacity  how much of the name there is; 1: a mutex
-- ARGV[2] the largest counter this client has seen here


-- All state is set by each call anew: where this is a library of functions, what one call leaves there the next one finds.
local name, queue, places, counter, shares
local capacity, seen
local time, now

-- How many living, and how many dead, one call sees to. The next call goes on.
local AT_ONCE, DEAD_AT_ONCE = 128, 1000

local function address(keys, args)
  name, queue, places, counter, shares = unpack(keys)
  capacity, seen = args[1], args[2]
  time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Has two keys that are kept together live for `ms` from now at least: where they do not, for `span`.
local function outlive(key, other, ms, span)
  if redis.call('PTTL', key) < tonumber(ms) then
    redis.call('PEXPIRE', key, span)
    redis.call('PEXPIRE', other, span)
  end
end
