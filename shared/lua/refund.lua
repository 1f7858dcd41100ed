-- refund: gives back what a request was charged and did not use, and its place. It was charged once, and this is once:
-- a repeat changes nothing, and a `reserve` that comes late is `closed`.
-- KEYS[1] hr:t:{<tenant>}:buckets. ARGV: 1 id, 2 requests it pays for (0 | 1), 3 tokens it pays for, 4 requests_per_min,
--   5 tokens_per_min, 6 keep_ms of the mark that it is closed.
-- Replies {'refunded' | 'closed' (it was before) | 'unknown' (never charged, or forgotten), 0, requests used,
--   tokens used, places held}; the figures are those after this call.
-- include: tenant
local id = ARGV[1]
local paid = {tonumber(ARGV[2]), tonumber(ARGV[3])}
local limits = {tonumber(ARGV[4]), tonumber(ARGV[5])}
local used = used_of(limits)
local charged = redis.call('HMGET', charge_key(id), 'requests', 'tokens', 'closed')
redis.call('HSET', charge_key(id), 'closed', 1)
redis.call('PEXPIRE', charge_key(id), ARGV[6])
redis.call('ZREM', base .. 'held', id)
if charged[3] then return figures('closed', 0, used) end
if not charged[1] then return figures('unknown', 0, used) end
for i, paid_for in ipairs(paid) do used[i] = math.max(0, used[i] - math.max(0, charged[i] - paid_for)) end
store(used, limits)
return figures('refunded', 0, used)
