-- When the leases of a node of a quorum end. Prefix of other scripts. See node.lua.
--
-- Each lease that the node has granted is noted. A lease that stands without a note is not of this run of the
-- server: it is a copy from before, or another client's, and nothing renews it here.

-- Ms of this server's clock.
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- The member that stands for the lease of an owner.
local function noted_as(name, owner)
  return #name .. ':' .. name .. owner
end

-- Notes that a lease lasts for `ms` from now at least. The end of one that lasts for longer stays.
local function note_end(ends, name, owner, ms)
  redis.call('ZADD', ends, 'GT', string.format('%.0f', now_ms() + 1 + tonumber(ms)), noted_as(name, owner))
end

local function forget_end(ends, name, owner)
  redis.call('ZREM', ends, noted_as(name, owner))
end

-- Forgets the leases that have ended without a release.
local function forget_ended(ends)
  redis.pcall('ZREMRANGEBYSCORE', ends, 1, string.format('%.0f', now_ms()))
end
