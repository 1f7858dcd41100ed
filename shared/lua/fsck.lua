-- fsck: the facts of a page of requests, and what contradicts them. Reads only.
-- KEYS[1] counts. ARGV: ids.
-- Replies {problems, facts}: problems are {id, words}; facts {id, state, class, tenant, prompt_tokens, bytes, worker, stream}.
-- include: core, request
local problems, facts = {}, {}

local function problem(id, words)
  problems[#problems + 1] = {id, words}
end

local function check_undone(id, request, has_entry, pending)
  if not has_entry then problem(id, request.state .. ' without its stream entry') end
  if redis.call('EXISTS', key('b', id)) == 0 then problem(id, request.state .. ' without its body') end
  if redis.call('TTL', key('r', id)) ~= -1 then problem(id, request.state .. ' and yet it expires') end
  if request.state == 'waiting' and pending then problem(id, 'waiting but delivered to ' .. pending) end
  if request.state == 'running' then
    local worker = worker_of(request.owner)
    if pending ~= worker then problem(id, 'running at ' .. worker .. ' but pending at ' .. (pending or 'nobody')) end
    if not redis.call('ZSCORE', key('own', worker), id) then problem(id, 'running but not in own:' .. worker) end
  end
end

local function check_letter(id, letter)
  local entry = redis.call('XRANGE', base .. 'dead', letter, letter)[1]
  if not entry or entry[2][2] ~= id then problem(id, 'a dead letter without its entry') end
  if redis.call('TTL', key('b', id)) < 0 then problem(id, 'a dead letter whose body is gone or never expires') end
end

local function check_done(id, request, has_entry)
  if has_entry then problem(id, request.state .. ' but still in its stream') end
  local letter = redis.call('HGET', key('r', id), 'letter')
  if letter then check_letter(id, letter)
  elseif redis.call('EXISTS', key('b', id)) == 1 then problem(id, request.state .. ' but keeps its body') end
  if redis.call('TTL', key('r', id)) < 0 then problem(id, request.state .. ' but never expires') end
  if redis.call('ZSCORE', base .. 'deadlines', id) then problem(id, request.state .. ' but has a deadline') end
  if request.idem and redis.call('TTL', base .. 'idem:' .. request.idem) == -1
    and string.find(redis.call('GET', base .. 'idem:' .. request.idem), id, 1, true) == 1 then
    problem(id, request.state .. ' but its idempotency key never expires')
  end
  local journal = redis.call('GET', key('j', id)) or ''
  if not string.find(journal, '%["e","' .. request.state .. '"[^\n]*\n$') then problem(id, 'done without its end frame') end
end

for _, id in ipairs(ARGV) do
  local request = load(id)
  if request then
    local stream, has_entry, pending = base .. request.stream, false, nil
    if redis.call('EXISTS', stream) == 1 then
      -- A stream that was deleted and made anew within a millisecond gives the same entry id again.
      local found = redis.call('XRANGE', stream, request.entry, request.entry)
      has_entry = #found == 1 and found[1][2][2] == id
      local detail = redis.call('XPENDING', stream, 'w', request.entry, request.entry, 1)
      if #detail == 1 then pending = detail[1][2] end
    end
    if is_done(request.state) then check_done(id, request, has_entry) else check_undone(id, request, has_entry, pending) end
    facts[#facts + 1] = {id, request.state, request.class, request.tenant, tonumber(request.prompt_tokens),
      tonumber(request.bytes), worker_of(request.owner), request.stream}
  end
end
return {problems, facts}
