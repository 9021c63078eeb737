-- Keys that hold timestamp values, and beside each the owner of the lease. Prefix of other scripts.
--
-- Other clients read the value alone. In seconds or ms it is the end of the lease, and the key
-- stays after that. For PHP it only distinguishes leases, and the key has a ttl. The owner is at a
-- key beside, as `<value> <owner>`. If another value stands there, the lease is not ours, and its
-- value is its owner.
--
-- `unit` is 's', 'ms' or 'php'. Times are microseconds since 1970.

local unit = ARGV[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
-- The smallest step between two values.
local STEP = ({ s = 1000000, ms = 1000, php = 100 })[unit]
-- The owner outlives the lease a little: the value alone decides whether the lease has ended.
local SLACK = 1000

local function digits(number)
  return string.format('%.0f', number)
end

-- The value of a lease that ends at `till`, or at the next time whose value differs from `last`.
local function value_for(till, last)
  local steps = math.ceil(till / STEP)
  local text
  repeat
    text = digits(steps)
    if unit == 'php' then
      -- As PHP prints it: at most four decimals, without trailing zeros.
      text = string.format('%.4f', steps / 10000):gsub('%.?0+$', '')
    end
    steps = steps + 1
  until text ~= last
  return text
end

-- The time that a value means. None if it is no time in this unit, or none of the years 2001 to
-- 5138.
local function point(value)
  local number = value:match(unit == 'ms' and '^%d+$' or '^%d+%.?%d*$') and tonumber(value)
  local micros = number and number * (unit == 'ms' and 1000 or 1000000)
  return micros and micros >= 1e15 and micros < 1e17 and micros or nil
end

-- The holder, or nil; the rest of the lease in ms, -1 for no end; the value in any case. An error
-- for a value that is no lease, and without a value for a key of another type.
local function read(name, beside)
  local value = redis.pcall('GET', name)
  if not value then
    return nil
  elseif type(value) == 'table' then
    -- A key that this user may not read may be anybody's: GET again returns that error.
    return nil, nil, nil, value.err:find('WRONGTYPE', 1, true) and value or redis.call('GET', name)
  end
  local noted = redis.call('GET', beside) or ''
  local ours = noted:sub(1, #value + 1) == value .. ' '
  local who, left = ours and noted:sub(#value + 2) or value
  if unit == 'php' then
    left = redis.call('PTTL', name)
  else
    local till = point(value)
    if not till then
      return nil, nil, value, redis.error_reply('TENURETIMESTAMP it is no time in ' .. unit)
    end
    left = math.ceil((till - now) / 1000)
    who = left > 0 and who or nil
  end
  return who, left, value
end

-- Makes `who` the holder for `ms` from now.
local function put(name, beside, who, ms, last)
  local value = value_for(now + tonumber(ms) * 1000, last)
  if unit == 'php' then
    redis.call('SET', name, value, 'PX', ms)
  else
    redis.call('SET', name, value)
    ms = digits((point(value) - now) / 1000)
  end
  redis.call('SET', beside, value .. ' ' .. who, 'PX', digits(tonumber(ms) + SLACK))
end

-- Has a lease last `ms` from now, unless it lasts longer.
local function prolong(name, beside, who, ms, left, value)
  if left >= tonumber(ms) then
    return
  end
  -- The first write must be one that a server out of memory allows, as PEXPIRE. Then it allows SET.
  redis.call('PEXPIRE', beside, digits(tonumber(ms) + SLACK))
  if unit == 'php' then
    redis.call('PEXPIRE', name, ms)
  else
    put(name, beside, who, ms, value)
  end
end
