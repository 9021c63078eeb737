-- Registers the scripts that hand over as functions. A script defines everything in it anew with
-- each call, which takes a third of its time. Last part of the library. `VERSION` stands for the
-- digest of the library, so each version has names of its own.

redis.register_function('tenure_acquire_VERSION', acquire)
redis.register_function('tenure_acquire_all_VERSION', acquire_all)
redis.register_function('tenure_release_VERSION', function(keys, args)
  return release_free(keys, args) or release(keys, args)
end)
