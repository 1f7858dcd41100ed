-- A tenant's slot: its buckets, what requests were charged, and the places they hold.
-- KEYS[1] is always hr:t:{<tenant>}:buckets, the one declared key of the slot.
--
-- A bucket is kept as what is used of it. It fills again all the time, at its limit a minute: `used` falls to 0.
local base = string.sub(KEYS[1], 1, -8)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local MINUTE_MS = 60000

local function charge_key(id)
  return base .. 'charge:' .. id
end

-- {requests, tokens} used of each bucket, now; a bucket without a limit is not kept.
local function used_of(limits)
  local stored = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'at')
  local passed_ms = math.max(0, now - tonumber(stored[3] or now))
  local used = {}
  for i, limit in ipairs(limits) do
    used[i] = limit > 0 and math.max(0, tonumber(stored[i] or '0') - limit * passed_ms / MINUTE_MS) or 0
  end
  return used
end

-- Kept until the buckets are full again.
local function store(used, limits)
  local full_ms = 1
  for i, limit in ipairs(limits) do
    if limit > 0 then full_ms = math.max(full_ms, math.ceil(used[i] * MINUTE_MS / limit)) end
  end
  redis.call('HSET', KEYS[1], 'requests', string.format('%.6f', used[1]), 'tokens', string.format('%.6f', used[2]),
    'at', now)
  redis.call('PEXPIRE', KEYS[1], full_ms)
end

-- A place is a lease: one whose gateway does not renew it is free again when it runs out.
local function hold(id, lease_ms)
  redis.call('ZADD', base .. 'held', now + lease_ms, id)
  if redis.call('PTTL', base .. 'held') < lease_ms then redis.call('PEXPIRE', base .. 'held', lease_ms) end
end

local function num_held()
  redis.call('ZREMRANGEBYSCORE', base .. 'held', '-inf', now)
  return redis.call('ZCARD', base .. 'held')
end

local function figures(verdict, wait_ms, used)
  return {verdict, math.ceil(wait_ms), string.format('%.6f', used[1]), string.format('%.6f', used[2]), num_held()}
end
