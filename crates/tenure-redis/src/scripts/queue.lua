-- The waiters of the name, and how they are served. Prefix of other scripts, after holders.lua.
--
-- A queue entry lapses without heartbeats. A call that meets a lapsed entry drops it. The channel
-- is '-' for a waiter that hears nothing. A waiter that is served is notified by PUBLISH <channel>
-- '<counter>:<handoff_ttl> <owner>'.

local last_counter, messages
local patience

-- Begins a call: reads the name, and refuses one of another kind.
local function begin(keys, args)
  last_counter, messages, patience = nil, {}, DEAD_AT_ONCE
  address(keys, args)
  return read_name()
end

-- The counter of the next grant, which `settle` writes.
local function next_counter()
  if not last_counter then
    local floor, refused = raised(counter, seen, time)
    if not floor then
      return nil, refused
    end
    last_counter = floor
  end
  last_counter = last_counter + 1
  return last_counter
end

-- Whether a channel is that of a slot of a cluster.
local function is_of_slot(channel)
  return channel:find('}:w:%x+$') ~= nil
end

-- Writes the counter and notifies those who were served. It comes last, because a refused PUBLISH
-- must not undo anything.
local function settle()
  if last_counter then
    write_counter(counter, last_counter)
  end
  for _, message in ipairs(messages) do
    redis.pcall(is_of_slot(message[1]) and 'SPUBLISH' or 'PUBLISH', message[1], message[2])
  end
end

-- The grant counter now: each later grant has a larger one.
local function grant_seq()
  return last_counter and digits(last_counter) or read_counter(counter) or '0'
end

-- The queue entry of `owner`. None for one that cannot be read: it is dropped as a lapsed one is.
local function entry_of(owner)
  local stored = redis.call('HGET', entries, owner) or ''
  local till, handoff_ttl, entry_ttl, weight, kept, channel = string.match(stored, '^(%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not till then
    return nil
  end
  local entry = { till = tonumber(till), weight = tonumber(weight), capacity = kept, channel = channel }
  entry.handoff_ttl, entry.entry_ttl = handoff_ttl, entry_ttl
  return entry
end

-- Has an entry live for its ttl from now.
local function store_entry(owner, entry)
  local till = digits(now + tonumber(entry.entry_ttl))
  local fields = { till, entry.handoff_ttl, entry.entry_ttl, digits(entry.weight), entry.capacity, entry.channel }
  redis.call('HSET', entries, owner, table.concat(fields, ' '))
  -- Longer than the entry, so that not every heartbeat has to do it.
  outlive(queue, entries, entry.entry_ttl, 2 * entry.entry_ttl)
end

local function dequeue(owner)
  redis.call('HDEL', entries, owner)
  return redis.call('ZREM', queue, owner) == 1
end

-- Adds an entry at the end. Others may be `queued`. Lapsed entries there are dropped: while a name
-- is held, no call drops them at the front.
local function join(owner, entry, queued)
  local last = queued and redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES') or {}
  while last[1] and patience > 0 do
    local before = entry_of(last[1])
    if before and before.till > now then
      break
    end
    dequeue(last[1])
    patience = patience - 1
    last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
  end
  redis.call('ZADD', queue, digits(tonumber(last[2] or '0') + 1), owner)
  store_entry(owner, entry)
end

-- The first waiter behind `at` others, its entry, and the one behind it. The queue is not read again once its last entry is gone:
-- see `depart`.
local function waiter(at)
  while patience > 0 do
    local owner, next = unpack(redis.call('ZRANGE', queue, at, at + 1))
    if not owner then
      return nil
    end
    local entry = entry_of(owner)
    if entry and entry.till > now then
      return owner, entry, next
    end
    dequeue(owner)
    patience = patience - 1
    if not next then
      return nil
    end
  end
end

-- Whether a push reaches nobody. False if the user may not ask.
local function is_deaf(channel)
  if channel == '-' then
    return false
  end
  local listeners = redis.pcall('PUBSUB', is_of_slot(channel) and 'SHARDNUMSUB' or 'NUMSUB', channel)
  return not listeners.err and listeners[2] == 0
end

-- Serves waiters in order while the shares fit: `me` for `my_ttl`, others for their handoff_ttl. It
-- stops at a waiter for another kind of lock. A waiter whose process hears nothing any more is
-- passed over and stays: its next heartbeat takes what is free. Returns the counter of `me`, false
-- if `me` was not served, nil and the reason if no grant can be counted.
local function serve(me, my_ttl)
  local at, mine, left, more = 0, false, AT_ONCE, true
  while left > 0 and more and not holder do
    local owner, entry
    owner, entry, more = waiter(at)
    if not owner or kind_of(entry.capacity) ~= kind_of(capacity) or not fits(entry.weight, entry.capacity) then
      break
    elseif owner ~= me and is_deaf(entry.channel) then
      -- As with lapsed entries: after so many, the next call goes on.
      at, patience = at + 1, patience - 1
    else
      left = left - 1
      local number, refused = next_counter()
      if not number then
        return nil, refused
      end
      -- The first write: a server out of memory allows it, and then all that follow.
      dequeue(owner)
      hold(owner, entry.weight, entry.capacity, owner == me and my_ttl or entry.handoff_ttl)
      if owner == me then
        mine = number
      elseif entry.channel ~= '-' then
        table.insert(messages, { entry.channel, digits(number) .. ':' .. entry.handoff_ttl .. ' ' .. owner })
      end
    end
  end
  return mine
end
