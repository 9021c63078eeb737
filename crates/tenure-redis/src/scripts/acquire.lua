-- Acquires a share, if the fast path of a free mutex was not enough. After keys, fence, holders and
-- queue.
-- Called as `acquire(KEYS, ARGV)`.
--
-- ARGV[3] owner     ARGV[4] ttl, ms     ARGV[5] weight
-- ARGV[6] '1' if finding the owner in place is success: it was generated for this attempt
-- ARGV[7] the owner to take over from, '' for none
-- ARGV[8] about the queue: 'none', 'join', 'keep' (a heartbeat); 'yield': the owner took the name a
--         moment ago, and those who wait come before it
-- ARGV[9] entry_ttl, ms  ARGV[10] handoff_ttl, ms  ARGV[11] channel, '-' for none
-- ARGV[12] '1': note the number of the grant, also of a name that was free, see note.lua
-- reply   {1, counter}                       granted, for the full ttl at least
--         {0, grant_seq, position, value, ttl in ms, weight, capacity, number, age in ms}
--                                            busy, with one of the holders; ttl -1: no end;
--                                            number of its grant if that is noted, else '';
--                                            age -1: unknown
--         {0, grant_seq, position}           free, but others come first, or `from` does not hold it
--         position is -1 without a queue entry; grant_seq and counter are strings

-- The request.
local owner, ttl, weight, generated

-- Whether an owner that holds, or waits for, `has` of a capacity `of` may ask for this request.
local function covers(of, has)
  return of == capacity and has >= weight
end

local function not_covered()
  return redis.error_reply('TENUREMORE the owner holds or waits for another share')
end

-- The number that is noted of the grant to `owner`.
local function noted(owner)
  local number = redis.pcall('HGET', shares, '@' .. owner)
  return type(number) == 'string' and number or ''
end

local function granted(number, is_noted)
  settle()
  if generated and is_noted then
    note(shares, owner, digits(number), holder and ttl or nil)
  end
  return { 1, digits(number) }
end

local function busy(enqueue)
  settle()
  local position = enqueue ~= 'none' and redis.call('ZRANK', queue, owner) or -1
  if holder then
    local number = noted(holder)
    return { 0, grant_seq(), position, holder, redis.call('PTTL', name), 1, 1, number, age_of(number, time) }
  end
  local next_to_end = redis.call('ZRANGEBYSCORE', name, '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local first, till = next_to_end[1], tonumber(next_to_end[2])
  if not first then
    return { 0, grant_seq(), position }
  end
  local number = noted(first)
  return { 0, grant_seq(), position, first, till - now, (weight_of(first)), tonumber(kind), number, age_of(number, time) }
end

-- Grants a share that the owner, or the one it takes over from, holds. Waiters are served if it
-- shrinks.
local function grant_again(held_by, held, till)
  local number, unfit = next_counter()
  if not number then
    return unfit
  end
  local ms, theirs = tonumber(ttl), nil
  if held_by == owner then
    -- A repetition that runs late must not shorten a renewed lease.
    ms = math.max(ms, till and till - now or redis.call('PTTL', name))
  else
    weight, held, theirs = held, nil, held
  end
  dequeue(owner)
  hold(owner, weight, capacity, digits(ms), held)
  if theirs and not holder then
    -- The other's share goes last: in a slot of a cluster that moves, the server ends a script that touches a key again that
    -- it has deleted.
    drop(held_by, theirs)
  end
  if held and weight < held then
    serve()
  end
  return granted(number, true)
end

local function acquire(keys, args)
  local refused = begin(keys, args)
  if refused then
    return refused
  end
  owner, ttl, weight = args[3], args[4], tonumber(args[5])
  local from, enqueue = args[7], args[8]
  generated = args[6] == '1'
  local first, their = waiter(0)
  if first and kind_of(their.capacity) ~= kind_of(capacity) then
    return other_kind(their.capacity)
  end

  local held, of, till = weight_of(owner)
  if held and generated and not covers(of, held) then
    return not_covered()
  elseif held and enqueue == 'yield' then
    drop(owner, held)
    enqueue = 'none'
  elseif held and generated then
    return grant_again(owner, held, till)
  elseif held or weight_of('linger:' .. owner) then
    -- A supplied token may be another client's. A released token never acquires again.
    return busy('none')
  end
  if from ~= '' then
    held, of = weight_of(from)
    return held and of == capacity and grant_again(from, held) or busy(enqueue)
  end

  if enqueue == 'join' then
    -- A waiter that is refused leaves no entry: nobody would look after it.
    local floor, unfit = raised(counter, seen, time)
    if not floor then
      dequeue(owner)
      return unfit
    end
  end
  local queued = first or patience < DEAD_AT_ONCE
  local mine = queued and enqueue ~= 'none' and entry_of(owner)
  if mine and mine.till <= now then
    dequeue(owner)
    mine = nil
  end
  if mine and not covers(mine.capacity, mine.weight) then
    return not_covered()
  elseif mine then
    -- The first write must be one that a server out of memory allows, as ZREM. Then it allows HSET.
    redis.call('ZREM', queue, '')
    mine.channel = args[11]
    store_entry(owner, mine)
  elseif enqueue == 'join' and (first or not fits(weight, capacity)) then
    join(owner, { handoff_ttl = args[10], entry_ttl = args[9], weight = weight, capacity = capacity, channel = args[11] }, queued)
  end
  local number, unfit = serve(owner, ttl)
  if number == nil then
    return unfit
  elseif number then
    return granted(number, true)
  end
  -- A lost queue entry is not made again, and a heartbeat without one gets nothing: the release of
  -- its owner may have been sent. Without patience, somebody may wait behind the lapsed entries.
  if enqueue ~= 'keep' and fits(weight, capacity) and not waiter(0) and patience > 0 then
    number, unfit = next_counter()
    if not number then
      return unfit
    end
    hold(owner, weight, capacity, ttl)
    return granted(number, args[12] == '1')
  end
  return busy(enqueue)
end
