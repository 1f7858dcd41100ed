-- admit: accepts a request once, or refuses it with the figures; all or nothing, also when memory is full.
-- A blind repeat finds its own id and answers `duplicate`.
-- KEYS[1] counts. ARGV: 1 id, 2 gateway ('' = none), 3 body, 4 prefix (journal a witness brings back, or ''),
--   5 mode ('new', or 'witness': past bounds, keys and charges), 6 class, 7 tenant, 8 prompt_tokens,
--   9 max_tokens, 10 n, 11 start_deadline_ms from now (0 = none), 12 deadline_ms from now (0 = none),
--   13 detached ('0' | '1'), 14 traceparent, 15 idempotency key hash ('' = none), 16 body digest,
--   17 max_waiting, 18 max_waiting_tokens, 19 max_waiting_bytes, 20 tenant_max_waiting (0 = none), 21 retention_s,
--   22 tenant weight.
-- Replies {'accepted', waiting before it} | {'duplicate', state} | {'same', id} | {'conflict', id}
--   | {'full' | 'tenant_full' | 'tokens_full' | 'bytes_full', now, limit}.
-- include: core, request
local id, gateway, body, prefix, mode, class, tenant = unpack(ARGV, 1, 7)
local prompt_tokens, max_tokens, n, start_ms, deadline_ms = unpack(ARGV, 8, 12)
local state = redis.call('HGET', key('r', id), 'state')
if state then return {'duplicate', state} end

local idempotency
if mode == 'new' and ARGV[15] ~= '' then
  idempotency = base .. 'idem:' .. tenant .. ':' .. ARGV[15]
  local known = redis.call('GET', idempotency)
  if known then
    local known_id, digest = string.match(known, '^(%S+) (%S+)$')
    if digest ~= ARGV[16] then return {'conflict', known_id} end
    return {'same', known_id}
  end
end

local request = {prompt_tokens = tonumber(prompt_tokens), bytes = #body, tenant = tenant, class = class}
local waiting = redis.call('HMGET', KEYS[1], 'waiting', 'waiting_tokens', 'waiting_bytes')
if mode == 'new' then
  local mine = tonumber(redis.call('HGET', key('tenant', tenant), 'waiting:' .. class) or '0')
  local bounds = {
    {'full', tonumber(waiting[1] or '0') + 1, tonumber(ARGV[17])},
    {'tokens_full', tonumber(waiting[2] or '0') + request.prompt_tokens, tonumber(ARGV[18])},
    {'bytes_full', tonumber(waiting[3] or '0') + #body, tonumber(ARGV[19])},
    {'tenant_full', mine + 1, tonumber(ARGV[20])},
  }
  for _, bound in ipairs(bounds) do
    if bound[3] > 0 and bound[2] > bound[3] then return {bound[1], tostring(bound[2]), tostring(bound[3])} end
  end
end

local stream = 'q:' .. class .. ':' .. tenant
local entry = add_entry(stream, id)
local tokens = tokens_in(prefix)
local start_deadline = tonumber(start_ms) > 0 and tokens == 0 and now + start_ms or 0
local deadline = tonumber(deadline_ms) > 0 and now + deadline_ms or 0
redis.call('HSET', key('r', id), 'state', 'waiting', 'stream', stream, 'entry', entry, 'owner', '/0/' .. now,
  'attempt', 0, 'crashes', 0, 'tenant', tenant, 'class', class, 'prompt_tokens', prompt_tokens,
  'max_tokens', max_tokens, 'n', n, 'tokens', tokens, 'bytes', #body, 'admitted_at', now,
  'start_deadline', start_deadline, 'deadline', deadline, 'detached', ARGV[13], 'traceparent', ARGV[14])
redis.call('SET', key('b', id), body)
if prefix ~= '' then redis.call('SET', key('j', id), prefix) end
if gateway ~= '' then
  redis.call('SADD', key('g', id), gateway)
  redis.call('SADD', key('att', gateway), id)
end
local next_deadline = start_deadline
if next_deadline == 0 or (deadline > 0 and deadline < next_deadline) then next_deadline = deadline end
if next_deadline > 0 then redis.call('ZADD', base .. 'deadlines', next_deadline, id) end

enter_waiting(request)
count('total_admitted', 1)
local account = key('tenant', tenant)
redis.call('PERSIST', account)
redis.call('HSET', account, 'weight', ARGV[22])
if redis.call('HINCRBY', account, 'waiting:' .. class, 1) == 1 then
  -- A tenant waking up starts at the class's clock: idleness earns no credit.
  local clock = tonumber(redis.call('HGET', KEYS[1], 'vclock:' .. class) or '0')
  local at = math.max(tonumber(redis.call('HGET', account, 'vtime:' .. class) or '0'), clock)
  redis.call('HSET', account, 'vtime:' .. class, at)
  redis.call('ZADD', key('flows', class), at, tenant)
end
if idempotency then redis.call('SET', idempotency, id .. ' ' .. ARGV[16], 'EX', ARGV[21]) end
audit('admitted', id, tenant)
ring()
return {'accepted', waiting[1] or '0'}
