-- Registers the scripts that nodes of a quorum run most as functions, see functions.lua. Last part of
-- their library.

redis.register_function('tenure_node_acquire_VERSION', function(keys, args)
  return take(keys, args) or node_acquire(keys, args)
end)
redis.register_function('tenure_node_release_VERSION', node_release)
redis.register_function('tenure_node_confirm_VERSION', confirm)
