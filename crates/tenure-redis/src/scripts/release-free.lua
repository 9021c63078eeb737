-- Gives up a mutex that nobody waits for: what most releases are. First part of the release, in front of all it needs otherwise.
--
-- 1 when it did; nothing where it is not that simple. Called as `release_free(KEYS, ARGV)`, see release.lua.

local function release_free(keys, args)
  if args[1] == '1' and args[4] == '0' and redis.call('EXISTS', keys[2]) == 0 and redis.pcall('GET', keys[1]) == args[3] then
    return redis.call('DEL', keys[1])
  end
end
