-- Notifies the waiters. A user without the right to publish is served all the same. Prefix of other scripts.
-- Their last argument is the command: PUBLISH, or in a cluster SPUBLISH, as in Redisson since 3.22.

local function publish(channel, message)
  local how = ARGV[#ARGV]
  local sent = redis.pcall(how, channel, message)
  if how ~= 'PUBLISH' and type(sent) == 'table' then
    -- Before Redis 7 there are no channels of slots.
    redis.pcall('PUBLISH', channel, message)
  end
end
