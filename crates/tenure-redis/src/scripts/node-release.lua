-- Releases a share at a node of a quorum. After release-free, the parts of release.lua, hints, and
-- node-ends.
--
-- KEYS[6] hints   see hints.lua   KEYS[7] ends   see node.lua
-- ARGV[5] '1' if a waiter is notified
-- Others and reply as in release.lua.

local function node_release(keys, args)
  local done = release_free(keys, args) or release(keys, args)
  if done == 1 then
    note_end(keys[7], keys[1])
  end
  if done == 1 and args[5] == '1' then
    notify(keys[6], keys[1])
  end
  return done
end
