-- Slot prefix, clock, doorbell. KEYS[1] is always the model's `counts` hash: the one declared key of the slot.
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

local function ring()
  redis.call('RPUSH', base .. 'bell', '1')
  redis.call('LTRIM', base .. 'bell', -64, -1)
end

local function audit(event, id, detail)
  redis.call('XADD', base .. 'events', 'MAXLEN', '~', 10000, '*', 'event', event, 'id', id, 'detail', detail)
end

-- Left for a worker's next emit or heartbeat.
local function command(worker, words)
  redis.call('RPUSH', key('ctl', worker), cjson.encode(words))
  redis.call('PEXPIRE', key('ctl', worker), 60000)
end
