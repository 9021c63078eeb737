-- Notifies those who wait. One who may not publish does the rest all the same. Prefix of other scripts, whose
-- last argument is the command for it: PUBLISH, or in a cluster SPUBLISH, as Redisson has it since 3.22.

local function publish(channel, message)
  local how = ARGV[#ARGV]
  local sent = redis.pcall(how, channel, message)
  if how ~= 'PUBLISH' and type(sent) == 'table' then
    -- Before Redis 7 there are no channels of slots.
    redis.pcall('PUBLISH', channel, message)
  end
end
