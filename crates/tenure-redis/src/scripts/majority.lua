-- Who holds a majority of keys, each of which holds an owner.

-- The number of keys of each owner, the keys by owner, those without, and the owner of a majority with
-- the time in ms until it loses that, -1 if never. A key of another type is nobody's. Or the error of
-- such a key, if they leave no majority.
local function look_at(keys)
  local of, free, majority, odd = {}, {}, nil, 0
  for _, key in ipairs(keys) do
    local value = redis.pcall('GET', key)
    if type(value) == 'table' then
      odd = odd + 1
      if not value.err:find('WRONGTYPE', 1, true) or odd >= #keys / 2 then
        return value
      end
    elseif value then
      of[value] = of[value] or {}
      table.insert(of[value], key)
      majority = #of[value] > #keys / 2 and value or majority
    else
      table.insert(free, key)
    end
  end
  local left
  if majority then
    local ends = {}
    for i, key in ipairs(of[majority]) do
      local ttl = redis.call('PTTL', key)
      ends[i] = ttl < 0 and math.huge or ttl
    end
    table.sort(ends)
    -- All keys of it before this one may go.
    left = ends[#ends - math.floor(#keys / 2)]
    left = left == math.huge and -1 or left
  end
  return nil, of, free, majority, left
end
