-- The number of a holder's grant, for those who look. It stands in the hash beside the name, in the
-- field '@' and owner. Only of a generated owner token: a supplied one may come again, and the number
-- of its grant before would be shown. No grant, renewal or release reads it. Prefix of other scripts.

-- Has the number stand, unless a later one does. A mutex has nothing else in the hash, which lives
-- for `ms`; of shares `ms` is nil. Nothing here fails the call.
local function note(shares, owner, number, ms)
  local field = '@' .. owner
  local stands = redis.pcall('HGET', shares, field)
  if type(stands) == 'string' and (tonumber(stands) or 0) > tonumber(number) then
    return
  end
  -- First what a server out of memory refuses: it must not grow for a note.
  local noted = redis.pcall('HSET', shares, field, number)
  if ms and type(noted) ~= 'table' then
    if redis.pcall('HLEN', shares) ~= 1 then
      redis.pcall('DEL', shares)
      redis.pcall('HSET', shares, field, number)
    end
    redis.pcall('PEXPIRE', shares, ms)
  end
end
