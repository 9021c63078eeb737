-- Keys and arguments of the scripts about names. Prefix of other scripts.
--
-- KEYS[1] name      string: the owner of a mutex; or sorted set: owner -> end of the lease, ms of this server's clock
-- KEYS[2] queue     sorted set: owner -> ticket, of the waiters; tickets rise
-- KEYS[3] entries   hash: owner -> 'end handoff_ttl entry_ttl weight capacity channel', times in ms
-- KEYS[4] counter   string: the grant counter
-- KEYS[5] shares    hash: '=' and owner -> weight if that is not 1; '#': sum of the weights, '##': the
--                   capacity. '@' and owner -> number of the grant, also of a mutex
-- ARGV[1] capacity  permits of the name; 1: a mutex
-- ARGV[2] the largest counter this client has seen here

-- Each call sets all of these anew: in a library of functions they outlive the call.
local name, queue, entries, counter, shares
local capacity, seen
local time, now

-- How many waiters one call serves, and how many lapsed entries it drops. The next call goes on.
local AT_ONCE, DEAD_AT_ONCE = 128, 1000

local function address(keys, args)
  name, queue, entries, counter, shares = unpack(keys)
  capacity, seen = args[1], args[2]
  time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Has two keys live for `ms` from now at least. If they do not, for `span`.
local function outlive(key, other, ms, span)
  if redis.call('PTTL', key) < tonumber(ms) then
    redis.call('PEXPIRE', key, span)
    redis.call('PEXPIRE', other, span)
  end
end
