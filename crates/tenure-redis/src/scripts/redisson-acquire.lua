-- Acquires an RLock of Redisson. After redisson-lock.lua.
--
-- KEYS[1] name   KEYS[2] token   string: the token of the last acquisition
-- KEYS[3] in a cluster, never there: a node that hands the slot over refuses the script
-- ARGV[1] owner   ARGV[2] ttl, ms
-- ARGV[3] '1' if finding the owner in place is success: it was generated for this attempt
-- ARGV[4] the owner to take over from, '' for none
-- reply   {1, token}                   granted, for the full ttl at least; token is a string
--         {0, owner, ttl in ms, mode}  busy; ttl -1: no end; mode of an RReadWriteLock, '' of an RLock
--         {0}                          free, and `from` does not hold it

return acquire_lock(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4])
