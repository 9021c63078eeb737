-- Gives up a mutex that nobody waits for: what most releases are. First part of the release, in front of all it needs otherwise.

if ARGV[1] == '1' and ARGV[4] == '0' and redis.call('EXISTS', KEYS[2]) == 0 and redis.call('GET', KEYS[1]) == ARGV[3] then
  return redis.call('DEL', KEYS[1])
end
