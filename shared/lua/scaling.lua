-- scaling: what the wanted number of workers follows from, in one consistent look. Reads only.
-- A worker's speed is taken from the requests that ended well lately, in their first attempt: how long each kept how
-- many of a worker's slots, for how many tokens. So it is known without anybody having watched.
-- KEYS[1] counts. ARGV: 1 ends looked at (the newest), 2 how old they may be (ms), 3 the time within which ends are
--   counted as the drain rate (ms), 4 tenants a class looked at for the oldest.
-- Replies {now (ms), {waiting, prompt tokens waiting, running}, oldest waiting since (ms, 0 = none), paused (0 | 1),
--   last end (ms, 0 = none known), ends, workers}
--   ends: {number that finished within the time, tokens of their answers, the time they span (ms), number of those
--     speed is taken from, slot-milliseconds they took, their prompt tokens, tokens of their answers}
--   workers: {info (JSON), load (JSON), registered_at (ms)}, of those that live and are not draining.
-- include: core, undelivered
local most, max_age_ms, span_ms, max_tenants = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function ms_of(entry)
  return tonumber(string.match(entry, '^%d+'))
end

local function oldest()
  local streams = {'q:retry'}
  for _, class in ipairs({'priority', 'default', 'flex', 'batch'}) do
    for _, tenant in ipairs(redis.call('ZRANGE', key('flows', class), 0, max_tenants - 1)) do
      streams[#streams + 1] = 'q:' .. class .. ':' .. tenant
    end
  end
  local first = 0
  for _, stream in ipairs(streams) do
    local since = undelivered(stream)
    if since > 0 and (first == 0 or since < first) then first = since end
  end
  return first
end

local function table_of(fields)
  local found = {}
  for i = 1, #fields, 2 do found[fields[i]] = fields[i + 1] end
  return found
end

local function ends()
  local recent = redis.call('XREVRANGE', base .. 'history', '+', now - max_age_ms, 'COUNT', most)
  local number, tokens, rated, slot_ms, prompts, answers = 0, 0, 0, 0, 0, 0
  local oldest_at = now - span_ms
  for _, entry in ipairs(recent) do
    local fields, at = table_of(entry[2]), ms_of(entry[1])
    -- There may be more of them within the time than were looked at.
    if now - at <= span_ms and #recent == most then oldest_at = at end
    if now - at <= span_ms and fields.state == 'finished' then number, tokens = number + 1, tokens + fields.tokens end
    if fields.state == 'finished' and fields.attempt == '1' and fields.ran_ms then
      rated = rated + 1
      slot_ms = slot_ms + fields.n * fields.ran_ms
      prompts, answers = prompts + fields.prompt_tokens, answers + fields.tokens
    end
  end
  return {number, tokens, math.max(1, now - oldest_at), rated, slot_ms, prompts, answers}
end

local workers = {}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', base .. 'lease', '(' .. now, '+inf')) do
  local told = redis.call('HMGET', key('w', worker), 'info', 'load', 'registered_at', 'draining')
  if told[1] and not told[4] then
    workers[#workers + 1] = {told[1], told[2] or '', tonumber(told[3] or '0')}
  end
end
local counts = redis.call('HMGET', KEYS[1], 'waiting', 'waiting_tokens', 'running')
for i = 1, 3 do counts[i] = math.max(0, tonumber(counts[i] or '0')) end
local last = redis.call('XREVRANGE', base .. 'history', '+', '-', 'COUNT', 1)
local paused = redis.call('EXISTS', base .. 'paused')
return {now, counts, oldest(), paused, #last > 0 and ms_of(last[1][1]) or 0, ends(), workers}
