-- A worker speaks under the nonce of its registration; a worker whose lease was reaped has none.
local function holds_lease(worker, nonce)
  return redis.call('HGET', key('w', worker), 'nonce') == nonce
end

local function renew(worker, lease_ms)
  redis.call('ZADD', base .. 'lease', now + lease_ms, worker)
end

-- Commands left for a worker: JSON arrays, handed over once.
local function commands_of(worker)
  local commands = redis.call('LRANGE', key('ctl', worker), 0, -1)
  if #commands > 0 then redis.call('DEL', key('ctl', worker)) end
  return commands
end
