-- Renews leases at a node of a quorum, and notes their ends. `renew` is renew.lua or renew-shares.lua,
-- `STEP` the number of its keys for each lease. After node-ends.
--
-- ends    see node.lua; the keys and arguments are those of `renew`

local renewed, noted = renew(), {}
for i = 1, #KEYS, STEP do
  if not noted[KEYS[i]] then
    noted[KEYS[i]] = true
    note_end(ends, KEYS[i])
  end
end
return renewed
