-- reap: gives back the work of late workers, expires deadlines, cancels orphans of dead gateways. Any process calls it.
-- Grace: after a silence longer than a lease (Redis or everybody was down) nobody is late for one lease more.
-- Blame: a crash counts against a request only if its journal did not grow since it was taken. Who has two such
-- crashes is tried by `take` beside proven work only, so that an innocent is not blamed for its company any more.
-- KEYS[1] counts. ARGV: 1 lease_ms, 2 max_crashes, 3 retention_s, 4 page: how many requests and workers one call looks
--   at in all, so that it holds the server for less than 5 ms, then dead gateways.
-- Replies {'ok' | 'grace', requeued, dead, expired, orphans, more (1: the page was full, call again)}.
-- include: core, request, dead
local lease_ms, max_crashes, retention_s, left = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local requeued, dead, expired, orphans = 0, 0, 0, 0

local function expire_deadlines()
  local due = redis.call('ZRANGEBYSCORE', base .. 'deadlines', '-inf', now, 'LIMIT', 0, left)
  left = left - #due
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
  if left == 0 then return end
  local held = redis.call('SRANDMEMBER', key('att', gateway), left) or {}
  left = left - #held
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
  if left == 0 then return end
  leave_bell(worker)
  redis.call('ZREM', base .. 'idle', worker)
  local held = redis.call('ZRANGE', key('own', worker), 0, left - 1)
  left = left - #held
  for _, id in ipairs(held) do take_back(id, worker) end
  if left == 0 then return end
  redis.call('DEL', key('w', worker), key('ctl', worker), key('own', worker))
  redis.call('ZREM', base .. 'lease', worker)
  left = left - 1
  audit('reaped', worker, #held)
end

local function reply(word)
  return {word, requeued, dead, expired, orphans, left == 0 and 1 or 0}
end

local last = tonumber(redis.call('HGET', KEYS[1], 'reaped_at') or '0')
local grace = tonumber(redis.call('HGET', KEYS[1], 'grace_until') or '0')
redis.call('HSET', KEYS[1], 'reaped_at', now)
expire_deadlines()
forget_old_letters()
if now - last > lease_ms then
  redis.call('HSET', KEYS[1], 'grace_until', now + lease_ms)
  return reply('grace')
end
if now < grace then return reply('grace') end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', base .. 'lease', '-inf', now, 'LIMIT', 0, left)) do
  reap_worker(worker)
end
for i = 5, #ARGV do cancel_orphans(ARGV[i]) end
ring()
return reply('ok')
