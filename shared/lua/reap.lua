-- reap: gives back the work of late workers, expires deadlines, cancels orphans of dead gateways. Any process calls it.
-- Grace: after a silence longer than a lease (Redis or everybody was down) nobody is late for one lease more.
-- Blame: a crash counts against a request only if its journal did not grow since it was taken. Who has two such
-- crashes is tried by `take` beside proven work only, so that an innocent is not blamed for its company any more.
-- KEYS[1] counts. ARGV: 1 lease_ms, 2 max_crashes, 3 retention_s, 4 page, then dead gateways.
-- Replies {'grace'} | {'ok', requeued, dead, expired, orphans, more ('1' when a page was full)}.
-- include: core, request, dead
local lease_ms, max_crashes, retention_s, page = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local requeued, dead, expired, orphans, more = 0, 0, 0, 0, 0

local function expire_deadlines()
  local due = redis.call('ZRANGEBYSCORE', base .. 'deadlines', '-inf', now, 'LIMIT', 0, page)
  if #due == page then more = 1 end
  for _, id in ipairs(due) do
    local request = load(id)
    if request and not is_done(request.state) then
      end_request(id, request, 'expired', 'deadline_exceeded', 'the deadline passed', retention_s)
      expired = expired + 1
    else
      redis.call('ZREM', base .. 'deadlines', id)
    end
  end
end

local function cancel_orphans(gateway)
  local held = redis.call('SRANDMEMBER', key('att', gateway), page) or {}
  if #held == page then more = 1 end
  for _, id in ipairs(held) do
    redis.call('SREM', key('att', gateway), id)
    redis.call('SREM', key('g', id), gateway)
    local request = load(id)
    if request and not is_done(request.state) and request.detached ~= '1' and redis.call('SCARD', key('g', id)) == 0 then
      end_request(id, request, 'cancelled', 'request_cancelled', 'its gateway died and nobody came back', retention_s)
      orphans = orphans + 1
    end
  end
end

local function blame(id, request)
  if has_grown(id, request.taken_length) then return tonumber(request.crashes) end
  return redis.call('HINCRBY', key('r', id), 'crashes', 1)
end

local function take_back(id, worker)
  local request = load(id)
  if not request or request.state ~= 'running' or worker_of(request.owner) ~= worker then
    redis.call('ZREM', key('own', worker), id)
    return
  end
  local crashes = blame(id, request)
  if crashes <= max_crashes then
    requeue(id, request, 'requeued')
    requeued = requeued + 1
    return
  end
  bury(id, request, worker, crashes, retention_s)
  dead = dead + 1
end

local function reap_worker(worker)
  local streams = {}
  local held = redis.call('ZRANGE', key('own', worker), 0, page - 1)
  for _, id in ipairs(held) do
    local stream = redis.call('HGET', key('r', id), 'stream')
    if stream then streams[stream] = true end
    take_back(id, worker)
  end
  for stream, _ in pairs(streams) do
    if redis.call('EXISTS', base .. stream) == 1 and #redis.call('XPENDING', base .. stream, 'w', '-', '+', 1, worker) == 0 then
      redis.call('XGROUP', 'DELCONSUMER', base .. stream, 'w', worker)
    end
  end
  if #held == page then more = 1 return end
  redis.call('DEL', key('w', worker), key('ctl', worker), key('own', worker))
  redis.call('ZREM', base .. 'lease', worker)
  audit('reaped', worker, #held)
end

local last = tonumber(redis.call('HGET', KEYS[1], 'reaped_at') or '0')
local grace = tonumber(redis.call('HGET', KEYS[1], 'grace_until') or '0')
redis.call('HSET', KEYS[1], 'reaped_at', now)
expire_deadlines()
forget_old_letters()
if now - last > lease_ms then
  redis.call('HSET', KEYS[1], 'grace_until', now + lease_ms)
  return {'grace'}
end
if now < grace then return {'grace'} end
local late = redis.call('ZRANGEBYSCORE', base .. 'lease', '-inf', now, 'LIMIT', 0, page)
if #late == page then more = 1 end
for _, worker in ipairs(late) do reap_worker(worker) end
for i = 5, #ARGV do cancel_orphans(ARGV[i]) end
return {'ok', requeued, dead, expired, orphans, more}
