-- Notes the number of the grant of each owner that holds its name. After note.lua.
--
-- KEYS    name and shares (see keys.lua) of each, in turn; then the grant counter
-- ARGV    owner, number of the grant, and ms for which the number of a mutex stands, of each, in
--         turn. No number: the counter's, of a grant in the same transaction

for i = 1, #ARGV / 3 do
  local name, shares, owner, number = KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i - 2], ARGV[3 * i - 1]
  if number == '' then
    number = redis.pcall('GET', KEYS[#KEYS])
  end
  number = tonumber(number) and number or '0'
  local value = redis.pcall('GET', name)
  if value == owner then
    note(shares, owner, number, ARGV[3 * i])
  elseif type(redis.pcall('ZSCORE', name, owner)) == 'string' and redis.pcall('HEXISTS', shares, '##') == 1 then
    -- A hash that was lost is not made anew: without it nothing is renewed.
    note(shares, owner, number)
  end
end
