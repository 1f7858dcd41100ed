-- A request's hash, its journal, and the moves between waiting, running and its end.
local FIELDS = {'state', 'stream', 'entry', 'owner', 'tenant', 'class', 'prompt_tokens', 'bytes', 'attempt',
  'crashes', 'detached', 'deadline', 'n', 'tokens', 'taken_length', 'start_deadline', 'passed_at', 'idem',
  'counted', 'prefixes', 'taken_at'}

-- nil when the hash is gone; otherwise a table of its fields, numbers as strings.
local function load(id)
  local values = redis.call('HMGET', key('r', id), unpack(FIELDS))
  if not values[1] then return nil end
  local request = {}
  for i, field in ipairs(FIELDS) do request[field] = values[i] or nil end
  return request
end

local function is_done(state)
  return state ~= 'waiting' and state ~= 'running'
end

-- Made a token or more since it was taken.
local function has_grown(id, taken_length)
  return redis.call('STRLEN', key('j', id)) > tonumber(taken_length or '0')
end

local function worker_of(owner)
  return string.match(owner or '', '^([^/]*)/') or ''
end

local function event_frame(name, detail)
  return '["v","' .. name .. '",' .. cjson.encode(detail) .. ']\n'
end

-- Appends a frame to the journal and tells every attached gateway, under `owner`.
local function announce(id, owner, frame)
  local offset = redis.call('STRLEN', key('j', id))
  redis.call('APPEND', key('j', id), frame)
  local message = cjson.encode({{id, owner, offset, frame}})
  for _, gateway in ipairs(redis.call('SMEMBERS', key('g', id))) do
    redis.call('PUBLISH', 'hr:out:' .. slot .. ':' .. gateway, message)
  end
end

-- Token ids in a journal; counted only where a witness brings one back.
local function tokens_in(journal)
  local tokens = 0
  for line in string.gmatch(journal, '%["t"[^\n]*') do tokens = tokens + #cjson.decode(line)[3] end
  return tokens
end

-- Tokens of a request's journal: what its worker told last, and what came since.
local function tokens_of(id, request)
  local counted = tonumber(request.counted or '0')
  if counted > redis.call('STRLEN', key('j', id)) then return tokens_in(redis.call('GET', key('j', id)) or '') end
  return tonumber(request.tokens) + tokens_in(redis.call('GETRANGE', key('j', id), counted, -1))
end

-- A client has its first token: from here on only `deadline` counts.
local function meet_start_deadline(id, deadline)
  if tonumber(deadline or '0') > 0 then
    redis.call('ZADD', base .. 'deadlines', deadline, id)
  else
    redis.call('ZREM', base .. 'deadlines', id)
  end
end

-- The last entry of a stream that was handed to a worker.
local function last_delivered(stream)
  local group = redis.call('XINFO', 'GROUPS', base .. stream)[1]
  for i = 1, #group, 2 do if group[i] == 'last-delivered-id' then return group[i + 1] end end
end

-- Acknowledged and deleted together. A stream without entries goes, and its group with it; in a stream that stays,
-- `consumer` (nil: it was not delivered) goes with the last entry it has there: a worker that left is nowhere named.
local function drop_entry(name, entry, consumer)
  local stream = base .. name
  redis.call('XACK', stream, 'w', entry)
  redis.call('XDEL', stream, entry)
  if redis.call('XLEN', stream) == 0 then
    redis.call('DEL', stream)
  elseif consumer and #redis.call('XPENDING', stream, 'w', '-', '+', 1, consumer) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, 'w', consumer)
  end
end

local function drop_entry_of(request)
  drop_entry(request.stream, request.entry, request.state == 'running' and worker_of(request.owner) or nil)
end

-- `words` are what its entry says besides its id.
local function add_entry(stream, id, words)
  if redis.call('EXISTS', base .. stream) == 0 then
    redis.call('XGROUP', 'CREATE', base .. stream, 'w', '0', 'MKSTREAM')
  end
  return redis.call('XADD', base .. stream, '*', 'id', id, unpack(words or {}))
end

local function enter_waiting(request)
  count('waiting', 1)
  count('waiting:' .. request.class, 1)
  count('waiting_tokens', request.prompt_tokens)
  count('waiting_bytes', request.bytes)
end

local function leave_waiting(request)
  count('waiting', -1)
  count('waiting:' .. request.class, -1)
  count('waiting_tokens', -request.prompt_tokens)
  count('waiting_bytes', -request.bytes)
  if request.stream ~= 'q:retry' then
    local left = redis.call('HINCRBY', key('tenant', request.tenant), 'waiting:' .. request.class, -1)
    if left <= 0 then redis.call('ZREM', key('flows', request.class), request.tenant) end
  end
end

local function enter_running(id, request, worker)
  count('running', 1)
  redis.call('HINCRBY', key('tenant', request.tenant), 'running', 1)
  redis.call('ZADD', key('own', worker), now, id)
end

local function leave_running(id, request)
  count('running', -1)
  redis.call('HINCRBY', key('tenant', request.tenant), 'running', -1)
  redis.call('ZREM', key('own', worker_of(request.owner)), id)
end

-- Service received, in tokens over the tenant's weight: its virtual time in this class.
local function charge(tenant, class, tokens)
  local weight = tonumber(redis.call('HGET', key('tenant', tenant), 'weight') or '1')
  local at = redis.call('HINCRBYFLOAT', key('tenant', tenant), 'vtime:' .. class, tokens / weight)
  redis.call('ZADD', key('flows', class), 'XX', at, tenant)
end

-- The end of a request, whatever it was: entry, body, indexes and counters go; hash and journal stay a while.
local function settle(id, request, state, retention_s)
  drop_entry_of(request)
  if request.state == 'waiting' then leave_waiting(request) else leave_running(id, request) end
  count('total_' .. state, 1)
  local tokens = tokens_of(id, request)
  redis.call('HSET', key('r', id), 'state', state, 'finished_at', now, 'tokens', tokens)
  -- A dead letter keeps its body, so that an operator can have it run again.
  if state == 'dead' then redis.call('EXPIRE', key('b', id), retention_s) else redis.call('DEL', key('b', id)) end
  redis.call('ZREM', base .. 'deadlines', id)
  for _, gateway in ipairs(redis.call('SMEMBERS', key('g', id))) do redis.call('SREM', key('att', gateway), id) end
  for _, kind in ipairs({'r', 'j', 'g'}) do redis.call('EXPIRE', key(kind, id), retention_s) end
  if request.idem then redis.call('EXPIRE', base .. 'idem:' .. request.idem, retention_s) end
  redis.call('EXPIRE', key('tenant', request.tenant), 86400)
  -- How long its last worker had it: from what ended lately follows what a worker can do (scaling.lua).
  local ran_ms = request.state == 'running' and now - tonumber(request.taken_at or now) or 0
  redis.call('XADD', base .. 'history', 'MAXLEN', '~', 10000, '*', 'id', id, 'state', state, 'tenant', request.tenant,
    'class', request.class, 'attempt', request.attempt, 'tokens', tokens, 'prompt_tokens', request.prompt_tokens,
    'n', request.n, 'ran_ms', ran_ms)
  audit(state, id, request.owner)
end

-- Ends a request from outside its worker: an `e` frame, and a command so that the worker lets go.
local function end_request(id, request, state, code, message, retention_s)
  local frame = '["e","' .. state .. '",null,' .. cjson.encode({code = code, message = message}) .. ']\n'
  announce(id, request.owner, frame)
  redis.call('HSET', key('r', id), 'error', code)
  settle(id, request, state, retention_s)
  if request.state == 'running' then command(worker_of(request.owner), {'cancel', id}) end
end

-- Back to the head of what is taken next; the script rings when it is done. The owner token changes, so the old attempt
-- is fenced.
local function requeue(id, request, event)
  drop_entry_of(request)
  if request.state == 'waiting' then leave_waiting(request) else leave_running(id, request) end
  local entry = add_entry('q:retry', id)
  enter_waiting(request)
  local owner = '/' .. request.attempt .. '/' .. now
  redis.call('HSET', key('r', id), 'state', 'waiting', 'stream', 'q:retry', 'entry', entry, 'owner', owner,
    'tokens', tokens_of(id, request), 'counted', redis.call('STRLEN', key('j', id)))
  announce(id, owner, event_frame(event, {at = now, worker = worker_of(request.owner)}))
  audit(event, id, request.owner)
end
