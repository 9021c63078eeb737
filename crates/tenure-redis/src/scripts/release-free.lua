-- Releases a mutex that nobody waits for, as most releases do. First part of the release, before
-- its other parts are defined.
--
-- Returns 1, or nothing if the release needs the other parts. Called as `release_free(KEYS, ARGV)`,
-- see release.lua.

local function release_free(keys, args)
  if args[1] == '1' and args[4] == '0' and redis.call('EXISTS', keys[2]) == 0 and redis.pcall('GET', keys[1]) == args[3] then
    redis.call('DEL', keys[1], keys[5])
    return 1
  end
end
