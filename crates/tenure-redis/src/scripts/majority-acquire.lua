-- Acquires all keys of a name that are free, if they are a majority. After majority.lua.
--
-- KEYS    of the name
-- ARGV    and reply as set-nx-acquire.lua; {} also if nobody holds a majority, and too few are free

local owner, ttl, from = ARGV[1], ARGV[2], ARGV[4]
local failed, of, free, holder, left = look_at(KEYS)
if failed then
  return failed
end
local mine = ARGV[3] == '1' and of[owner] or {}
local ours = holder == owner and #mine > 0
-- Other clients may hold by an empty value.
local theirs = from ~= '' and holder == from and not ours and of[from] or {}
if not (ours or #theirs > 0 or from == '' and #free + #mine > #KEYS / 2) then
  return holder and { holder, left } or {}
end
for _, keys in ipairs({ theirs, free }) do
  for _, key in ipairs(keys) do
    redis.call('SET', key, owner, 'PX', ttl)
  end
end
for _, key in ipairs(mine) do
  -- A repetition that runs late must not shorten a renewed lease.
  if redis.call('PTTL', key) < tonumber(ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end
return 1
