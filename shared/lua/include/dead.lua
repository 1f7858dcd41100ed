-- Dead letters: what its workers died of is kept for an operator, body and journal too, DEAD_S long, DEAD_LETTERS at
-- most (the oldest goes first). `letter` in the request's hash names its entry. Needs request.
local DEAD_LETTERS, DEAD_S = 1000, 86400

-- Entry and body go; hash and journal stay for `retention_s` more. False when there is no such letter.
local function drop_letter(id, retention_s)
  local entry = redis.call('HGET', key('r', id), 'letter')
  if not entry or redis.call('XDEL', base .. 'dead', entry) == 0 then return false end
  redis.call('DEL', key('b', id))
  redis.call('HDEL', key('r', id), 'letter')
  for _, kind in ipairs({'r', 'j', 'g'}) do redis.call('EXPIRE', key(kind, id), retention_s) end
  return true
end

-- A crash counts only if the journal did not grow since the request was taken. Returns how many count.
local function blame(id, request)
  if has_grown(id, request.taken_length) then return tonumber(request.crashes) end
  return redis.call('HINCRBY', key('r', id), 'crashes', 1)
end

local function bury(id, request, worker, crashes, retention_s)
  local entry = redis.call('XADD', base .. 'dead', '*', 'id', id, 'worker', worker, 'crashes', crashes,
    'tenant', request.tenant, 'class', request.class)
  redis.call('HSET', key('r', id), 'letter', entry)
  end_request(id, request, 'dead', 'worker_crashed', 'workers died running this request ' .. crashes .. ' times', DEAD_S)
  while redis.call('XLEN', base .. 'dead') > DEAD_LETTERS do
    local oldest = redis.call('XRANGE', base .. 'dead', '-', '+', 'COUNT', 1)[1]
    if not drop_letter(oldest[2][2], retention_s) then redis.call('XDEL', base .. 'dead', oldest[1]) end
  end
end

-- Hash, journal and body have expired by then.
local function forget_old_letters()
  redis.call('XTRIM', base .. 'dead', 'MINID', now - DEAD_S * 1000)
end
