-- hold: renews the places of a tenant's requests, and how long their charges are remembered. A closed one stays closed.
-- KEYS[1] hr:t:{<tenant>}:buckets. ARGV: 1 lease_ms, 2 keep_ms, then ids.
-- Replies {how many were renewed}.
-- include: tenant
local lease_ms, keep_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
local renewed = 0
for i = 3, #ARGV do
  if not redis.call('HGET', charge_key(ARGV[i]), 'closed') then
    hold(ARGV[i], lease_ms)
    redis.call('PEXPIRE', charge_key(ARGV[i]), keep_ms)
    renewed = renewed + 1
  end
end
return {renewed}
