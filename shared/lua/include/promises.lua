-- When clients refused by a full queue may come back, and the room kept for them: one ledger a model, so that it does
-- not matter by which gateway they come, or come back. `promises`: <mark>:<request id> -> due (ms of the server's clock);
-- `promises:<mark>`: the same of one client, or of several that ask the very same.
-- Each is told when all refused before it will have been let in, at SHARE of the rate the queue drains (were it all of
-- it, each dip of the rate would break promises for good). Without room kept for those who are due, whoever comes by
-- chance would take it, and no figure could be right. At most half of the queue is kept, so that workers always have
-- work; who does not come within GRACE_MS loses it. Needs core.
local SHARE, GRACE_MS, AHEAD_MS = 0.95, 2000, 1500
-- Nobody is told more than MOST_MS (clients do not wait for longer); at most MOST promises are kept.
local LEAST_MS, MOST_MS, MOST = 1000, 60000, 20000
local LET_IN_MS = 10000
local ledger = base .. 'promises'

local function enter_promise(mark, id, due)
  local score = string.format('%.3f', due)
  for at, member in pairs({[ledger] = mark .. ':' .. id, [key('promises', mark)] = id}) do
    redis.call('ZADD', at, score, member)
    redis.call('PEXPIRE', at, MOST_MS + GRACE_MS)
  end
end

local function leave_promise(mark, id)
  redis.call('ZREM', ledger, mark .. ':' .. id)
  redis.call('ZREM', key('promises', mark), id)
end

-- What was promised to the client that asks, as {id of the request it was refused with, due}, or nil. A repeated call
-- finds its own. Who asks before the time is taken for the one that was promised, unless somebody who asked the same
-- was let in lately: then there are several, and this is another one.
local function promise_of(mark, id)
  if redis.call('ZCARD', ledger) == 0 then return nil end
  local mine = key('promises', mark)
  for _, at in ipairs({ledger, mine}) do redis.call('ZREMRANGEBYSCORE', at, '-inf', now - GRACE_MS) end
  local own = redis.call('ZSCORE', mine, id)
  if own then return {id = id, due = tonumber(own)} end
  local first = redis.call('ZRANGE', mine, 0, 0, 'WITHSCORES')
  if not first[1] then return nil end
  if tonumber(first[2]) > now and redis.call('EXISTS', key('let_in', mark)) == 1 then return nil end
  return {id = first[1], due = tonumber(first[2])}
end

-- Places kept for others than a client that is due itself.
local function kept_places(promised, max_waiting)
  if promised and promised.due <= now then return 0 end
  return math.min(redis.call('ZCOUNT', ledger, '-inf', now + AHEAD_MS), math.floor(max_waiting / 2))
end

-- Milliseconds until a refused client may come back; -1: no rate is known, nothing was promised. A gateway that has
-- measured none yet (per_s 0) uses that of the last promise.
local function promise(mark, id, promised, per_s)
  if promised and promised.due > now then return promised.due - now end
  if promised then -- it came when it was told, and there was no room: it is the next
    leave_promise(mark, promised.id)
    enter_promise(mark, id, now + LEAST_MS)
    return LEAST_MS
  end
  local last = redis.call('HMGET', KEYS[1], 'promised_until', 'promised_per_s')
  if per_s <= 0 then per_s = tonumber(last[2] or '0') end
  if per_s <= 0 or mark == '' then return -1 end
  local last_due = tonumber(last[1] or '0')
  if last_due > now + MOST_MS then last_due = now end -- by the clock of a server that was replaced
  local due = math.max(now, last_due) + 1000 / (SHARE * per_s)
  if due - now > MOST_MS then return MOST_MS end
  if redis.call('ZCARD', ledger) < MOST then
    redis.call('HSET', KEYS[1], 'promised_until', string.format('%.3f', due), 'promised_per_s', per_s)
    enter_promise(mark, id, math.max(due, now + LEAST_MS))
  end
  return math.max(LEAST_MS, due - now)
end

-- A client was let in, while others are or soon will be refused.
local function let_in(mark, promised, is_tight)
  if promised then leave_promise(mark, promised.id) end
  if mark ~= '' and (is_tight or redis.call('ZCARD', ledger) > 0) then
    redis.call('SET', key('let_in', mark), '1', 'PX', LET_IN_MS)
  end
end
