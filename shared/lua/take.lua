-- take: hands a worker what it has room for, never more: a request is peeked, and read only when it fits.
-- `retry` first, then the class of least virtual time (tokens served over its weight), in it the tenant of least.
-- Workers share: beyond its part of all work a worker leaves what is younger than YOUNG_MS to the others.
-- What is kept for another worker (lanes.lua) is passed by until its time is over; what is kept for this one goes first.
-- Does not renew the lease: a worker whose engine hangs must go late though it asks for more.
-- Of a paused model it hands out nothing, and says that nothing waits.
-- Whom it tells that nothing waits is `idle` from then on: it blocks at its bell, which rings for what comes later.
-- What it leaves waiting wakes others.
-- KEYS[1] counts. ARGV: 1 worker, 2 nonce, 3 slots (sequences), 4 room (tokens), 5 patience_ms, 6 retention_s.
-- Replies {'nolease'} | {'ok', waiting, {id, owner, body, journal, 'gateway gateway ...', ms left until it must
--   have its first token, ms left until it must be over (0 = no such deadline)}...}.
-- include: core, lease, request, share, lanes
local worker, nonce = ARGV[1], ARGV[2]
local slots, room, patience_ms, retention_s = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
if not holds_lease(worker, nonce) then return {'nolease'} end
leave_bell(worker)
local held = redis.call('ZCARD', key('own', worker))
if redis.call('EXISTS', base .. 'paused') == 1 then
  listen(worker, held)
  return {'ok', 0}
end
local taken = {}
local YOUNG_MS = 100
local DEPTH = redis.call('EXISTS', base .. 'seen') == 1 and 16 or 1 -- where nobody is preferred, nobody overtakes
local MOST = 32 -- in one call, so that the server is not held for longer than 5 ms; the worker asks again at once
local is_idle = held == 0
local share = share_of_work(0)
local is_closed = false -- nothing more is taken: somebody was passed over for too long, or the rest is others'

-- The next undelivered entries of a stream, as far as one may overtake.
local function peek(stream)
  if redis.call('EXISTS', base .. stream) == 0 then return {} end
  return redis.call('XRANGE', base .. stream, '(' .. last_delivered(stream), '+', 'COUNT', DEPTH)
end

local function fits(request)
  local need = request.n * (request.prompt_tokens) + request.tokens
  if is_idle and #taken == 0 then return true end
  return tonumber(request.n) <= slots and need <= room
end

local function pass_over(id, request)
  if not request.passed_at then
    redis.call('HSET', key('r', id), 'passed_at', now)
  elseif now - request.passed_at > patience_ms then
    is_closed = true
  end
end

-- A suspect (crashed workers twice without a token) is tried beside work that has shown its worth only: so a crash
-- before its next token has one cause. Until that token its worker takes nothing else.
local function has_unproven()
  for _, id in ipairs(redis.call('ZRANGE', key('own', worker), 0, -1)) do
    if not has_grown(id, redis.call('HGET', key('r', id), 'taken_length')) then return true end
  end
  return false
end

local function tries_suspect()
  local suspect = redis.call('HGET', key('w', worker), 'suspect')
  return suspect and redis.call('ZSCORE', key('own', worker), suspect)
    and not has_grown(suspect, redis.call('HGET', key('r', suspect), 'taken_length'))
end

-- Until a deadline; 0 for none.
local function ms_left(deadline)
  return tonumber(deadline or '0') > 0 and math.max(1, deadline - now) or 0
end

-- Delivered, in its stream; one that overtakes moves into a stream of this worker, since a stream gives its next only.
local function deliver(id, request, choice)
  if not choice.is_next then
    drop_entry(request.stream, request.entry)
    request.stream = 'q:lane:' .. worker
    redis.call('HSET', key('r', id), 'stream', request.stream, 'entry', add_entry(request.stream, id))
  end
  redis.call('XREADGROUP', 'GROUP', 'w', worker, 'COUNT', 1, 'STREAMS', base .. request.stream, '>')
end

local function leave_lane(id, request, choice)
  if choice.lane then
    redis.call('ZREM', key('lane', choice.lane), id)
    count(choice.is_mine and 'lane_hits' or 'lane_misses', 1)
  end
  if request.prefixes then remember(worker, request.prefixes) end
end

local function hand_over(id, request, choice)
  leave_waiting(request)
  deliver(id, request, choice)
  leave_lane(id, request, choice)
  enter_running(id, request, worker)
  local attempt = request.attempt + 1
  local owner = worker .. '/' .. attempt .. '/' .. now
  local is_first = attempt == 1 and tonumber(request.tokens) == 0
  if is_first then
    count('takes', 1)
    advance_clocks(request.class, request.tenant)
    charge(request.tenant, request.class, request.n * request.prompt_tokens)
    charge_class(request.class, request.n * request.prompt_tokens)
  end
  announce(id, owner, event_frame('taken', {worker = worker, attempt = attempt, at = now}))
  local journal = redis.call('GET', key('j', id))
  redis.call('HSET', key('r', id), 'state', 'running', 'owner', owner, 'attempt', attempt, 'taken_at', now,
    'taken_length', #journal)
  redis.call('HDEL', key('r', id), 'passed_at')
  audit('taken', id, owner)
  slots = slots - request.n
  room = room - request.n * request.prompt_tokens - request.tokens
  local gateways = table.concat(redis.call('SMEMBERS', key('g', id)), ' ')
  local start_left = tonumber(request.tokens) == 0 and ms_left(request.start_deadline) or 0
  local body = redis.call('GET', key('b', id))
  taken[#taken + 1] = {id, owner, body, journal, gateways, start_left, ms_left(request.deadline)}
end

-- Beyond its share this worker leaves young work to the others; of what is kept for it, it has a little more.
local function is_for_others(choice)
  local most = choice.is_mine and most_for(share) or share
  return held + #taken >= most and now - tonumber(string.match(choice.entry, '^%d+')) < YOUNG_MS
end

-- Who is in turn and does not fit is remembered; one of this worker's lane that overtakes waits for its turn.
local function try_fitting(id, request, choice, is_in_turn)
  if is_for_others(choice) then
    is_closed = is_in_turn
    return false
  end
  if not fits(request) then
    if is_in_turn then pass_over(id, request) end
    return false
  end
  if tonumber(request.crashes) >= 2 then
    is_closed = true
    if has_unproven() then return false end
    redis.call('HSET', key('w', worker), 'suspect', id)
  end
  hand_over(id, request, choice)
  return true
end

-- Returns true when its entry left the stream (so that it is worth looking again).
local function try_entry(stream, choice, is_in_turn)
  local id = choice.id
  local request = load(id)
  if not request or request.state ~= 'waiting' or request.entry ~= choice.entry then
    drop_entry(stream, choice.entry)
    return true
  end
  local deadline = redis.call('ZSCORE', base .. 'deadlines', id)
  if deadline and tonumber(deadline) < now then
    end_request(id, request, 'expired', 'deadline_exceeded', 'the deadline passed while waiting', retention_s)
    return true
  end
  return try_fitting(id, request, choice, is_in_turn)
end

local function try_stream(stream)
  local choices = choose(peek(stream), worker)
  for i, choice in ipairs(choices) do
    if try_entry(stream, choice, i == #choices) then return true end
    if is_closed then return false end
  end
  return false
end

local function try_class(class)
  for _, tenant in ipairs(redis.call('ZRANGE', key('flows', class), 0, 7)) do
    if is_closed then return false end
    if try_stream('q:' .. class .. ':' .. tenant) then return true end
  end
  return false
end

local function try_any()
  if try_stream('q:retry') then return true end
  for _, class in ipairs(classes_in_turn()) do
    if is_closed then return false end
    if try_class(class.name) then return true end
  end
  return false
end

if tries_suspect() then is_closed = true end
while slots > 0 and #taken < MOST and not is_closed and try_any() do end
local waiting = tonumber(redis.call('HGET', KEYS[1], 'waiting') or '0')
if waiting == 0 and #taken == 0 then
  listen(worker, held)
else
  redis.call('ZREM', base .. 'idle', worker)
  ring()
end
return {'ok', waiting, unpack(taken)}
