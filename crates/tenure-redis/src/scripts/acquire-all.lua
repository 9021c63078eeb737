-- Acquires shares of several names, all or none. After keys, fence, holders and queue.
-- Called as `acquire_all(KEYS, ARGV)`.
--
-- KEYS[1] counter; then name, queue, entries and shares of each name in turn, as in keys.lua
-- ARGV[1] and [2] as there  ARGV[3] ttl, ms  ARGV[4] weight; then the owner of each name in turn
-- reply   the counter of each grant, as a string; none if one of the names is busy: then none was taken
--         an error ends with the name that it is about

local function acquire_all(keys, args)
  local ttl, weight = tonumber(args[3]), tonumber(args[4])
  local function open(i)
    local at = 4 * i - 2
    return begin({ keys[at], keys[at + 1], keys[at + 2], keys[1], keys[at + 3] }, args), args[i + 4]
  end

  -- Each name is read, even after a busy one: a name of another kind is an error.
  local free = true
  for i = 1, #args - 4 do
    local refused, owner = open(i)
    if refused then
      return redis.error_reply(refused.err .. ' at ' .. name)
    end
    local held, of = weight_of(owner)
    local first, their = waiter(0)
    if first and kind_of(their.capacity) ~= kind_of(capacity) then
      return redis.error_reply(other_kind(their.capacity).err .. ' at ' .. name)
    end
    -- A released owner token never acquires again.
    local gone = weight_of('linger:' .. owner)
    local has = held == weight and of == capacity
    free = free and (has or not held and not gone and not first and patience > 0 and fits(weight, capacity))
  end
  if not free then
    return {}
  end
  -- The counters of all names come before the first is taken.
  local first, unfit = next_counter()
  if not first then
    return unfit
  elseif first + #args > MOST then
    return redis.error_reply('TENURECOUNTER the grant counter stands at ' .. digits(first) .. ', with too few numbers left')
  end
  local counters = {}
  for i = 1, #args - 4 do
    local _, owner = open(i)
    last_counter = first + i - 1
    local held, _, till = weight_of(owner)
    -- A repetition that runs late must not end what a renewal has prolonged.
    local left = held and (till and till - now or redis.call('PTTL', name)) or 0
    hold(owner, weight, capacity, digits(math.max(ttl, left)), held)
    settle()
    note(shares, owner, digits(last_counter), holder and redis.call('PTTL', name) or nil)
    counters[i] = digits(last_counter)
  end
  return counters
end
