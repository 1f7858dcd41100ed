-- Slot prefix, clock, doorbells. KEYS[1] is always the model's `counts` hash: the one declared key of the slot.
local base = string.sub(KEYS[1], 1, -7)
local slot = string.sub(base, 4, -2)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function key(kind, id)
  return base .. kind .. ':' .. id
end

local function count(field, by)
  redis.call('HINCRBY', KEYS[1], field, by)
end

-- Each worker has a bell of its own. One that found nothing to take is in `idle` and blocks at its bell; one that was
-- rung is in `woken` until it asks. After every script: as many are woken as requests wait, or nobody is idle.
-- So no wake-up is lost, and one request wakes one worker.
local ASKS_AGAIN_MS = 2000 -- an idle worker asks each second; one that does not is dead or hangs, and is not rung
local WOKEN_MS = 200 -- whom a ring has not brought by then it does not bring: another one is rung
local BELL_MS = 10000 -- a bell nobody answers is gone by then
local MOST_TRIED = 64 -- in one call, so that it stays short; whoever comes rings on
local BY_LOAD = 1e13 -- more than any time in ms

-- Woken first is who holds least, and of these who asked last: it lives for certain, its caches are warm, and the dead
-- sink to the bottom.
local function listen(worker, num_held)
  if redis.call('HGET', key('w', worker), 'draining') then return end
  redis.call('ZADD', base .. 'idle', now - num_held * BY_LOAD, worker)
end

-- It asks, or is gone.
local function leave_bell(worker)
  redis.call('ZREM', base .. 'woken', worker)
  redis.call('DEL', key('bell', worker))
end

local function will_hear(worker, rank)
  local lease = redis.call('ZSCORE', base .. 'lease', worker)
  return lease and tonumber(lease) > now and tonumber(rank) % BY_LOAD > now - ASKS_AGAIN_MS
end

local function wake(worker)
  redis.call('ZADD', base .. 'woken', now, worker)
  redis.call('RPUSH', key('bell', worker), '1')
  redis.call('PEXPIRE', key('bell', worker), BELL_MS)
end

-- Before `ring`, where one of the idle is the one that should come.
local function ring_for(worker)
  local rank = redis.call('ZSCORE', base .. 'idle', worker)
  if not rank or not will_hear(worker, rank) or redis.call('EXISTS', base .. 'paused') == 1 then return end
  redis.call('ZREM', base .. 'idle', worker)
  wake(worker)
end

-- Who would not hear leaves `idle` as well; asking brings it back. In a paused model nobody is woken: `resume` rings.
local function ring()
  if redis.call('EXISTS', base .. 'idle') == 0 or redis.call('EXISTS', base .. 'paused') == 1 then return end
  local waiting = tonumber(redis.call('HGET', KEYS[1], 'waiting') or '0')
  if waiting <= 0 then return end
  local lacking = waiting - redis.call('ZCOUNT', base .. 'woken', now - WOKEN_MS, '+inf')
  for _ = 1, MOST_TRIED do
    if lacking <= 0 then return end
    local worker, rank = unpack(redis.call('ZPOPMAX', base .. 'idle'))
    if not worker then return end
    if will_hear(worker, rank) then
      wake(worker)
      lacking = lacking - 1
    end
  end
end

local function audit(event, id, detail)
  redis.call('XADD', base .. 'events', 'MAXLEN', '~', 10000, '*', 'event', event, 'id', id, 'detail', detail)
end

-- Left for a worker's next emit or heartbeat.
local function command(worker, words)
  redis.call('RPUSH', key('ctl', worker), cjson.encode(words))
  redis.call('PEXPIRE', key('ctl', worker), 60000)
end
