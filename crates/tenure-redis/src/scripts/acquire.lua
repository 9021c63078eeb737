-- Asks for a share: whatever the fast path of a free mutex could not settle. After keys, fence, holders and queue.
-- Called as `acquire(KEYS, ARGV)`.
--
-- ARGV[3] owner     ARGV[4] ttl, ms     ARGV[5] weight
-- ARGV[6] '1' when finding the owner in place is success
-- ARGV[7] the owner to take over from, '' for none
-- ARGV[8] 'none', 'join' or 'keep' a place; 'yield': what the owner was given a moment ago goes to those who wait before it
-- ARGV[9] keep, ms  ARGV[10] claim, ms  ARGV[11] channel, '-' for none
-- reply   {1, counter}                                  the owner's, for the full ttl at least
--         {0, mark, ahead, value, ttl in ms, weight}    another's, of whom this is one; ttl -1: never ends
--         {0, mark, ahead}                              nobody's, and not the asker's turn, or to be taken over
--         ahead is -1 for an asker without a place; mark and counter are strings

-- What is asked for.
local owner, ttl, weight

local function granted(number)
  settle()
  return { 1, digits(number) }
end

local function busy(place)
  settle()
  local ahead = place ~= 'none' and redis.call('ZRANK', queue, owner) or -1
  if mutex then
    return holder and { 0, mark(), ahead, holder, redis.call('PTTL', name), 1 } or { 0, mark(), ahead }
  end
  local next_to_end = redis.call('ZRANGEBYSCORE', name, '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not next_to_end[1] then
    return { 0, mark(), ahead }
  end
  return { 0, mark(), ahead, next_to_end[1], tonumber(next_to_end[2]) - now, (weight_of(next_to_end[1])) }
end

-- Puts a share that is held in the asker's hands. Nothing changes for those who wait, unless it shrinks.
local function again(held_by, held, till)
  local number, unfit = next_counter()
  if not number then
    return unfit
  end
  local ms = tonumber(ttl)
  if held_by == owner then
    -- A repetition that runs late must not end what a renewal has prolonged.
    ms = math.max(ms, mutex and redis.call('PTTL', name) or till - now)
  else
    drop(held_by, held)
    weight, held = held, nil
  end
  leave(owner)
  hold(owner, weight, digits(ms), held)
  if held and weight < held then
    serve()
  end
  return granted(number)
end

local function acquire(keys, args)
  local refused = begin(keys, args)
  if refused then
    return refused
  end
  owner, ttl, weight = args[3], args[4], tonumber(args[5])
  local repeatable, from, place = args[6] == '1', args[7], args[8]
  local first, their = waiter(0)
  if first and their.capacity ~= capacity then
    return redis.error_reply('TENUREKIND it is waited for with a capacity of ' .. their.capacity)
  end

  local held, till = weight_of(owner)
  if held and place == 'yield' then
    drop(owner, held)
    place = 'none'
  elseif held and repeatable then
    if weight > held then
      return redis.error_reply('TENUREMORE the owner holds less than it asks for')
    end
    return again(owner, held, till)
  elseif held or (not mutex and kind and weight_of('linger:' .. owner)) then
    -- A value that was given may be another's; and one that was given up is never taken again.
    return busy('none')
  end
  if from ~= '' then
    held = weight_of(from)
    return held and again(from, held) or busy(place)
  end

  local queued = first or patience < DEAD_AT_ONCE
  local mine = queued and place ~= 'none' and place_of(owner)
  if mine and mine.till <= now then
    leave(owner)
    mine = nil
  end
  if mine then
    -- A server out of memory refuses what follows as a script's first write, though nothing grows by it.
    redis.call('ZREM', queue, '')
    mine.channel = args[11]
    keep(owner, mine)
  elseif place == 'join' and (first or not fits(weight)) then
    join(owner, { claim = args[10], keep = args[9], weight = weight, capacity = capacity, channel = args[11] }, queued)
  end
  local number, unfit = serve(owner, ttl)
  if number == nil then
    return unfit
  end
  -- A place that is gone is not made again, and its owner gets nothing: its release may have been sent. Without patience nobody knows
  -- who is behind so many dead.
  if not number and place ~= 'keep' and fits(weight) and not waiter(0) and patience > 0 then
    number, unfit = next_counter()
    if not number then
      return unfit
    end
    hold(owner, weight, ttl)
  end
  return number and granted(number) or busy(place)
end
