-- Releases a share at a node of a quorum. After node-ends, release-free, the parts of release.lua, and
-- hints.
--
-- KEYS[6] hints   see hints.lua   KEYS[7] ends   see node.lua
-- ARGV[5] '1' if a waiter is notified
-- Others and reply as in release.lua.

local function node_release(keys, args)
  local done = release_free(keys, args) or release(keys, args)
  if type(done) == 'number' then
    forget_end(keys[7], keys[1], args[3])
  end
  if done == 1 and args[4] ~= '0' then
    note_end(keys[7], keys[1], 'linger:' .. args[3], args[4])
  end
  if done == 1 and args[5] == '1' then
    notify(keys[6], keys[1])
  end
  return done
end
