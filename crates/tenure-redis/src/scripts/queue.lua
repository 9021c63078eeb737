-- Those who wait for the name, and how they are served. Prefix of other scripts, after holders.lua.
--
-- A place lapses unless it is looked after; whoever meets a lapsed one drops it. The channel is '-' for one who hears nothing.
-- A waiter that is served is told by PUBLISH <channel> '<counter>:<claim> <owner>'.

local last_counter, messages
local patience

-- Begins a call: reads what is there, and refuses a name that is of another kind.
local function begin(keys, args)
  last_counter, messages, patience = nil, {}, DEAD_AT_ONCE
  address(keys, args)
  return look()
end

-- The counter of the next grant, which `settle` writes.
local function next_counter()
  if not last_counter then
    local floor, refused = lifted(counter, seen, time)
    if not floor then
      return nil, refused
    end
    last_counter = floor
  end
  last_counter = last_counter + 1
  return last_counter
end

-- Writes the counter and tells those who were served: last, because a PUBLISH that is refused must not undo what was done.
local function settle()
  if last_counter then
    redis.call('SET', counter, digits(last_counter))
  end
  for _, message in ipairs(messages) do
    redis.pcall('PUBLISH', message[1], message[2])
  end
end

-- The grant counter now: whatever is granted later has a larger one.
local function mark()
  return last_counter and digits(last_counter) or redis.call('GET', counter) or '0'
end

-- None as well for an entry that makes no sense: it is dropped as one that has lapsed.
local function place_of(owner)
  local entry = redis.call('HGET', places, owner) or ''
  local till, claim, keep, weight, kept, channel = string.match(entry, '^(%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not till then
    return nil
  end
  return { till = tonumber(till), claim = claim, keep = keep, weight = tonumber(weight), capacity = kept, channel = channel }
end

-- Makes a place last from now.
local function keep(owner, place)
  local till = digits(now + tonumber(place.keep))
  local entry = { till, place.claim, place.keep, digits(place.weight), place.capacity, place.channel }
  redis.call('HSET', places, owner, table.concat(entry, ' '))
  -- Longer than the place, so that this is not due with every heartbeat.
  outlive(queue, places, place.keep, 2 * place.keep)
end

local function leave(owner)
  redis.call('HDEL', places, owner)
  return redis.call('ZREM', queue, owner) == 1
end

-- Makes a place at the end, where others may be `queued`. The dead that are met there are dropped: while a name is held, nobody
-- comes by at the front.
local function join(owner, place, queued)
  local last = queued and redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES') or {}
  while last[1] and patience > 0 do
    local before = place_of(last[1])
    if before and before.till > now then
      break
    end
    leave(last[1])
    patience = patience - 1
    last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
  end
  redis.call('ZADD', queue, digits(tonumber(last[2] or '0') + 1), owner)
  keep(owner, place)
end

-- The first who waits, `at` others left out.
local function waiter(at)
  while patience > 0 do
    local owner = redis.call('ZRANGE', queue, at, at)[1]
    if not owner then
      return nil
    end
    local place = place_of(owner)
    if place and place.till > now then
      return owner, place
    end
    leave(owner)
    patience = patience - 1
  end
end

-- Whether a push reaches nobody. Where the user may not ask, it may.
local function is_deaf(channel)
  if channel == '-' then
    return false
  end
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return not listeners.err and listeners[2] == 0
end

-- Serves the queue in order for as long as the shares fit, `me` for `my_ttl` and the others for their claims. Those who wait for
-- another kind of lock are not given this one. One whose process hears nothing any more is passed over and stays: its next heartbeat
-- takes what is free. The counter of `me`, false if it was not among them; nil and the reason where no grant can be counted.
local function serve(me, my_ttl)
  local at, mine, left = 0, false, AT_ONCE
  while left > 0 and not (mutex and holder) do
    local owner, place = waiter(at)
    if not owner or place.capacity ~= capacity or not fits(place.weight) then
      break
    elseif owner ~= me and is_deaf(place.channel) then
      -- As with the dead: after so many, whoever comes next goes on.
      at, patience = at + 1, patience - 1
    else
      left = left - 1
      local number, refused = next_counter()
      if not number then
        return nil, refused
      end
      -- This comes first: a server out of memory allows it, and then what follows.
      leave(owner)
      hold(owner, place.weight, owner == me and my_ttl or place.claim)
      if owner == me then
        mine = number
      elseif place.channel ~= '-' then
        table.insert(messages, { place.channel, digits(number) .. ':' .. place.claim .. ' ' .. owner })
      end
    end
  end
  return mine
end
