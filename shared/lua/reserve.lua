-- reserve: charges a request to its tenant's buckets and gives it one of the tenant's places, or changes nothing.
-- Idempotent: a repeat finds the charge of its id and is `reserved` again, charged once. After `refund` it is `closed`.
-- KEYS[1] hr:t:{<tenant>}:buckets. ARGV: 1 id, 2 tokens (prompt and longest answers), 3 requests_per_min,
--   4 tokens_per_min, 5 max_concurrency (each 0 = no limit), 6 lease_ms of the place, 7 keep_ms of the charge.
-- Replies {verdict, wait_ms, requests used, tokens used, places held}; the figures are those after this call.
--   verdict 'reserved' | 'closed' | 'concurrency' | 'requests' | 'tokens' (what is lacking; wait_ms until that
--   bucket has enough, 0 for 'concurrency': nobody knows when a request ends).
-- include: tenant
local id, tokens = ARGV[1], tonumber(ARGV[2])
local limits = {tonumber(ARGV[3]), tonumber(ARGV[4])}
local max_concurrency, lease_ms, keep_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local used = used_of(limits)
local charged = redis.call('HMGET', charge_key(id), 'requests', 'closed')
if charged[2] then return figures('closed', 0, used) end
if charged[1] then
  hold(id, lease_ms)
  return figures('reserved', 0, used)
end

if max_concurrency > 0 and num_held() >= max_concurrency then return figures('concurrency', 0, used) end
local lacking, wait_ms = nil, 0
for i, wanted in ipairs({1, tokens}) do
  if limits[i] > 0 and used[i] + wanted > limits[i] then
    local until_enough = (used[i] + wanted - limits[i]) * MINUTE_MS / limits[i]
    if until_enough > wait_ms then lacking, wait_ms = i == 1 and 'requests' or 'tokens', until_enough end
  end
end
if lacking then return figures(lacking, wait_ms, used) end

used = {used[1] + 1, used[2] + tokens}
store(used, limits)
redis.call('HSET', charge_key(id), 'requests', 1, 'tokens', tokens)
redis.call('PEXPIRE', charge_key(id), keep_ms)
hold(id, lease_ms)
return figures('reserved', 0, used)
