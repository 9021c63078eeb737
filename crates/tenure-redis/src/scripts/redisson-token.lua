-- The next token of an RFencedLock of Redisson, raised to the clock: else it would begin anew at a
-- server that has lost its data. Nil and an error if there is none. Prefix of other scripts, after
-- fence.lua.

local function next_token(token)
  local number, unfit = raised(token, 0, redis.call('TIME'))
  if not number then
    return nil, unfit
  end
  number = number + 1
  write_counter(token, number)
  return digits(number)
end
