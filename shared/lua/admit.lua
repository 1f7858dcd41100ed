-- admit: accepts a request once, or refuses it with the figures; all or nothing, also when memory is full.
-- A blind repeat finds its own id and answers `duplicate`.
-- KEYS[1] counts. ARGV: 1 id, 2 gateway ('' = none), 3 body, 4 prefix (journal a witness brings back, or ''),
--   5 mode ('new', or 'witness': past bounds, keys and charges), 6 class, 7 tenant, 8 prompt_tokens,
--   9 max_tokens, 10 n, 11 start_deadline_ms from now (0 = none), 12 deadline_ms from now (0 = none),
--   13 detached ('0' | '1'), 14 traceparent, 15 idempotency key hash ('' = none), 16 body digest,
--   17 max_waiting, 18 max_waiting_tokens, 19 max_waiting_bytes, 20 tenant_max_waiting (0 = none), 21 retention_s,
--   22 tenant weight, 23 view (JSON: how its client sees it), 24 class weight ('0' = as it is),
--   25 max_ahead: how many may be before it, so that its deadline can be met ('-1' = any number),
--   26 mark: by what its client is known when it comes back ('' = by nothing), 27 drain rate (requests/s, 0 = unknown),
--   28 until when its key is this model's (ms of the server's clock; 0 = not claimed),
--   29 class_max_waiting: requests of its class that may wait (0 = none),
--   30 lane_ms: how long it is kept for the worker that served its prefix (0 = for nobody), 31 hashes of its prompt's
--   beginnings, the longest first ('' = none), 32 those of them that its worker is remembered by.
-- Replies {'accepted', waiting before it, expected to be taken before it} | {'duplicate', state} | {'same', id}
--   | {'conflict', id} | {'unclaimed'} (too long on its way) | {'class_full' | 'tenant_full' | 'tokens_full' | 'bytes_full' | 'too_late',
--   now, limit}
--   | {'full', now, limit, places of it kept for others, ms until there is room (-1 = unknown)}.
-- `full` is a promise (promises.lua), written with the refusal and with nothing else; a repeat is told the rest of it.
-- A key finds its request as long as there is a result to be had: a run that was cancelled, failed or expired, or
-- is forgotten, is run anew under the new id.
-- include: core, request, share, promises, lanes
local id, gateway, body, prefix, mode, class, tenant = unpack(ARGV, 1, 7)
local prompt_tokens, max_tokens, n, start_ms, deadline_ms = unpack(ARGV, 8, 12)
local RUN_ANEW = {cancelled = true, failed = true, expired = true}
local state = redis.call('HGET', key('r', id), 'state')
if state then return {'duplicate', state} end

local idem = ARGV[15] ~= '' and tenant .. ':' .. ARGV[15] or ''
local known = idem ~= '' and redis.call('GET', base .. 'idem:' .. idem)
if mode == 'new' and known then
  local known_id, digest = string.match(known, '^(%S+) (%S+)$')
  local known_state = redis.call('HGET', key('r', known_id), 'state')
  if known_state and digest ~= ARGV[16] then return {'conflict', known_id} end
  if known_state and not RUN_ANEW[known_state] then return {'same', known_id} end
end

if mode == 'new' and tonumber(ARGV[28]) > 0 and now > tonumber(ARGV[28]) then return {'unclaimed'} end

local request = {prompt_tokens = tonumber(prompt_tokens), bytes = #body, tenant = tenant, class = class}
local waiting = redis.call('HMGET', KEYS[1], 'waiting', 'waiting_tokens', 'waiting_bytes', 'waiting:' .. class)
local mine = tonumber(redis.call('HGET', key('tenant', tenant), 'waiting:' .. class) or '0')
local ahead = ahead_of(class, tenant, mine)
if mode == 'new' then
  local mark, max_waiting, num_waiting = ARGV[26], tonumber(ARGV[17]), tonumber(waiting[1] or '0') + 1
  local promised = promise_of(mark, id)
  local kept = kept_places(promised, max_waiting)
  if max_waiting > 0 and num_waiting > math.max(1, max_waiting - kept) then
    local wait_ms = promise(mark, id, promised, tonumber(ARGV[27]))
    return {'full', tostring(num_waiting), ARGV[17], tostring(kept), tostring(math.ceil(wait_ms))}
  end
  local bounds = {
    {'tokens_full', tonumber(waiting[2] or '0') + request.prompt_tokens, tonumber(ARGV[18])},
    {'bytes_full', tonumber(waiting[3] or '0') + #body, tonumber(ARGV[19])},
    {'tenant_full', mine + 1, tonumber(ARGV[20])},
    {'class_full', tonumber(waiting[4] or '0') + 1, tonumber(ARGV[29])},
  }
  for _, bound in ipairs(bounds) do
    if bound[3] > 0 and bound[2] > bound[3] then return {bound[1], tostring(bound[2]), tostring(bound[3])} end
  end
  local max_ahead = tonumber(ARGV[25])
  if max_ahead >= 0 and ahead > max_ahead then return {'too_late', tostring(ahead), ARGV[25]} end
  let_in(mark, promised, max_waiting > 0 and num_waiting * 2 > max_waiting)
end

local stream = 'q:' .. class .. ':' .. tenant
local lane_ms, hashes = tonumber(ARGV[30]), {}
for hash in string.gmatch(ARGV[31], '%S+') do hashes[#hashes + 1] = hash end
local lane = lane_ms > 0 and #hashes > 0 and preferred_for(hashes) or nil
local entry = add_entry(stream, id, kept_words(lane, lane_ms))
if lane then enter_lane(lane, id, lane_ms) end
local tokens = tokens_in(prefix)
local start_deadline = tonumber(start_ms) > 0 and tokens == 0 and now + start_ms or 0
local deadline = tonumber(deadline_ms) > 0 and now + deadline_ms or 0
-- First what each emit reads: a small hash is searched from its beginning.
redis.call('HSET', key('r', id), 'owner', '/0/' .. now, 'state', 'waiting', 'class', class, 'tenant', tenant,
  'tokens', tokens, 'counted', #prefix, 'stream', stream, 'entry', entry, 'attempt', 0, 'crashes', 0, 'prompt_tokens', prompt_tokens,
  'max_tokens', max_tokens, 'n', n, 'bytes', #body, 'admitted_at', now,
  'start_deadline', start_deadline, 'deadline', deadline, 'detached', ARGV[13], 'traceparent', ARGV[14],
  'view', ARGV[23])
if ARGV[32] ~= '' then redis.call('HSET', key('r', id), 'prefixes', ARGV[32]) end
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
if tonumber(ARGV[24]) > 0 then redis.call('HSET', KEYS[1], 'weight:' .. class, ARGV[24]) end
if redis.call('HINCRBY', account, 'waiting:' .. class, 1) == 1 then
  if redis.call('EXISTS', key('flows', class)) == 0 then wake_class(class) end
  local at = waking_vtime(class, tenant)
  redis.call('HSET', account, 'vtime:' .. class, at)
  redis.call('ZADD', key('flows', class), at, tenant)
end
-- Kept without an end while there is no result; `settle` gives it the result's. A witness brings a lost one back.
if idem ~= '' and (mode == 'new' or not known or string.match(known, '^%S+') == id) then
  redis.call('SET', base .. 'idem:' .. idem, id .. ' ' .. ARGV[16])
  redis.call('HSET', key('r', id), 'idem', idem)
end
if lane then ring_for(lane) end
audit('admitted', id, tenant)
ring()
return {'accepted', waiting[1] or '0', tostring(ahead)}
