-- Makes functions of the scripts that hand over: a script makes everything in it anew with every call, which takes a third of its
-- time. Last part of the library. `VERSION` stands for the library's digest: every version of it has names of its own.

redis.register_function('tenure_acquire_VERSION', acquire)
redis.register_function('tenure_acquire_all_VERSION', acquire_all)
redis.register_function('tenure_release_VERSION', function(keys, args)
  return release_free(keys, args) or release(keys, args)
end)
