-- Notes the number of a grant for `inspect`, in the field '@' and owner of the hash beside the name.
-- No grant, renewal or release reads it. Only generated owner tokens are noted: a supplied token may
-- hold again, and then the number of its earlier grant would be shown. Prefix of other scripts.

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
