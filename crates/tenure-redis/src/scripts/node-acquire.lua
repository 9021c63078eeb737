-- Acquires a share at a node of a quorum, if node-take.lua was not enough. After the parts of
-- acquire.lua, and hints.
--
-- KEYS[4] memory   see node.lua   KEYS[6] hints   see hints.lua   KEYS[7] ends   see node.lua
-- ARGV and reply as in acquire.lua. ARGV[11] is the channel of a process that waits for the name.

local function node_acquire(keys, args)
  local from = args[7]
  -- Nobody takes over from a lease that is not noted. The owner may have taken over already.
  local function is_noted(owner)
    return redis.call('ZSCORE', keys[7], noted_as(keys[1], owner))
  end
  local answer = { 0, '0', -1 }
  if from == '' or is_noted(from) or is_noted(args[3]) then
    answer = acquire(keys, args)
  else
    local other = redis.pcall('GET', keys[1])
    if type(other) == 'string' then
      answer = { 0, '0', -1, other, redis.call('PTTL', keys[1]), 1, 1, '', -1 }
    end
  end
  if answer[1] == 0 and args[11] ~= '-' then
    remember_waiter(keys[6], args[11], args[4])
  end
  if answer[1] == 1 then
    if from ~= '' then
      forget_end(keys[7], keys[1], from)
    end
    note_end(keys[7], keys[1], args[3], args[4])
  end
  forget_ended(keys[7])
  return answer
end
