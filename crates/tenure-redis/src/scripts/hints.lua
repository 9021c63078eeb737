-- Hints to the waiters of a name at a node of a quorum, where nobody queues. Each release notifies one
-- process. If it notified all, they would divide the nodes among them. All of them poll as well.
--
-- The hints of a name are a sorted set: channel of a process -> when it was refused first, ms. A
-- message is 'free' and the key of the name.

-- Channels that one release drops at most, because nobody listens to them any more.
local DEAF = 100

-- Keeps in mind for `ms` at least which process was refused. A server out of memory does without.
local function remember_waiter(hints, channel, ms)
  local time = redis.call('TIME')
  redis.pcall('ZADD', hints, 'NX', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), channel)
  local left = redis.pcall('PTTL', hints)
  if type(left) == 'table' or left < tonumber(ms) then
    redis.pcall('PEXPIRE', hints, ms)
  end
end

-- Notifies the process that has waited longest.
local function notify(hints, name)
  for _ = 1, DEAF do
    local channel = redis.pcall('ZRANGE', hints, 0, 0)[1]
    if not channel then
      return
    end
    redis.call('ZREM', hints, channel)
    if redis.pcall('PUBLISH', channel, 'free ' .. name) ~= 0 then
      return
    end
  end
end
