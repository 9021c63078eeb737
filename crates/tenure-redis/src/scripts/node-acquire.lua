-- Acquires a share at a node of a quorum, if node-take.lua was not enough. After the parts of
-- acquire.lua, hints, and node-ends.
--
-- A node votes only when no lease from before its loss can stand. So a lease of ours whose end it has not
-- noted since is the copy of one that has ended, and is dropped. Keys of others have no ends.
--
-- KEYS[4] memory   see node.lua   KEYS[6] hints   see hints.lua   KEYS[7] ends   see node.lua
-- ARGV and reply as in acquire.lua. ARGV[11] is the channel of a process that waits for the name.

-- Whether a value was generated for an attempt, or lingers after one.
local GENERATED = '%.' .. string.rep('[0-9a-f]', 32) .. '$'

local function drop_copy(keys)
  local name, shares, ends = keys[1], keys[5], keys[7]
  if redis.call('ZSCORE', ends, name) or not redis.call('ZSCORE', ends, '') then
    return
  end
  local kind = redis.call('TYPE', name).ok
  local is_copy = kind == 'zset' and redis.call('EXISTS', shares) == 1
  if kind == 'string' then
    is_copy = redis.call('GET', name):find(GENERATED) ~= nil
  end
  if is_copy then
    redis.call('DEL', name, shares)
  end
end

local function node_acquire(keys, args)
  drop_copy(keys)
  local answer = acquire(keys, args)
  if answer[1] == 0 and args[11] ~= '-' then
    remember_waiter(keys[6], args[11], args[4])
  end
  if answer[1] == 1 then
    note_end(keys[7], keys[1])
  end
  return answer
end
