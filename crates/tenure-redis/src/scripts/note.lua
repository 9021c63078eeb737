-- The number of a holder's grant, for those who look. It stands in the hash beside the name, in the
-- field '@' and owner. No grant, renewal or release depends on it. Prefix of other scripts.

-- Has the number stand. A mutex has nothing else in the hash, which lives for `ms`; of shares `ms` is
-- nil. Nothing here fails the call.
local function note(shares, owner, number, ms)
  if ms then
    redis.pcall('DEL', shares)
  end
  redis.pcall('HSET', shares, '@' .. owner, number)
  if ms then
    redis.pcall('PEXPIRE', shares, ms)
  end
end
