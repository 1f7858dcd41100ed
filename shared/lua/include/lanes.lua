-- Lanes: a request whose prompt begins as one that a worker took lately is kept for that worker for a short time, so
-- that its KV cache serves it. It waits in its tenant's stream all the same; its entry says `for` whom and `until`
-- when (ms). So a lane holds nothing that others could not take a moment later, whatever became of its worker.
-- `seen` is prefix hash -> worker; full, it becomes `seen_before`, and the oldest half is forgotten.
local SEEN_MOST, SEEN_MS = 50000, 600000
local LOAD_FACTOR, LOAD_SLACK = 1.25, 1 -- a worker is preferred up to so many times its share of all work, and so many more
local TRIED_MOST = 4 -- workers looked at for one request
local OVERTAKE_MS = 500 -- nobody is overtaken by one that came later than this after it

-- Work by live worker, and how many of them there are.
local function share_of_work(num_coming)
  local work = redis.call('HMGET', KEYS[1], 'waiting', 'running')
  local live = redis.call('ZCOUNT', base .. 'lease', now, '+inf')
  return (tonumber(work[1] or '0') + tonumber(work[2] or '0') + num_coming) / math.max(1, live), live
end

local function most_for(share)
  return math.ceil(LOAD_FACTOR * share) + LOAD_SLACK
end

-- Alive, staying, and not so full, counting what is on its way, that others should have it: a hot prefix spreads.
local function has_lane(worker, share)
  local lease = redis.call('ZSCORE', base .. 'lease', worker)
  if not lease or tonumber(lease) <= now or redis.call('HGET', key('w', worker), 'draining') then return false end
  local num_kept = redis.call('ZCOUNT', key('lane', worker), '(' .. now, '+inf')
  return redis.call('ZCARD', key('own', worker)) + num_kept < most_for(share)
end

-- Who took the longest of these beginnings last; of hashes the longest is first. nil: nobody whose lane is open.
local function preferred_for(hashes)
  local share, live = share_of_work(1)
  if live < 2 then return nil end
  local seen, before = redis.call('HMGET', base .. 'seen', unpack(hashes)), {}
  if redis.call('EXISTS', base .. 'seen_before') == 1 then
    before = redis.call('HMGET', base .. 'seen_before', unpack(hashes))
  end
  local tried, num_tried = {}, 0
  for i in ipairs(hashes) do
    local worker = seen[i] or before[i]
    if worker and not tried[worker] then
      if has_lane(worker, share) then return worker end
      tried[worker], num_tried = true, num_tried + 1
      if num_tried == TRIED_MOST then return nil end
    end
  end
end

-- The words of an entry that is kept; none when it is for anybody.
local function kept_words(worker, lane_ms)
  if not worker then return {} end
  return {'for', worker, 'until', now + lane_ms}
end

local function enter_lane(worker, id, lane_ms)
  local lane = key('lane', worker)
  redis.call('ZREMRANGEBYSCORE', lane, '-inf', now)
  redis.call('ZADD', lane, now + lane_ms, id)
  redis.call('PEXPIRE', lane, lane_ms)
end

-- Of a stream's next entries those a worker should try, best first: its own, then who is in turn, the first that is
-- kept for no other. Each {entry id, request id, in turn, its own, kept for whom, is the stream's next}.
local function choose(entries, worker)
  local mine, turn
  for i, entry in ipairs(entries) do
    local words = entry[2]
    local choice = {entry = entry[1], id = words[2], lane = words[4], is_mine = words[4] == worker, is_next = i == 1}
    if not turn and (not choice.lane or choice.is_mine or tonumber(words[6]) <= now) then turn = choice end
    if choice.is_mine then
      mine = choice
      break
    end
  end
  if not mine or mine.id == turn.id then return {turn} end
  local gap_ms = string.match(mine.entry, '^%d+') - string.match(turn.entry, '^%d+')
  return gap_ms > OVERTAKE_MS and {turn} or {mine, turn}
end

-- This worker has these prefixes in its cache now.
local function remember(worker, hashes)
  local seen = base .. 'seen'
  if redis.call('HLEN', seen) >= SEEN_MOST then
    redis.call('UNLINK', base .. 'seen_before')
    redis.call('RENAME', seen, base .. 'seen_before')
  end
  local words = {}
  for hash in string.gmatch(hashes, '%S+') do
    words[#words + 1] = hash
    words[#words + 1] = worker
  end
  redis.call('HSET', seen, unpack(words))
  redis.call('PEXPIRE', seen, SEEN_MS)
  redis.call('PEXPIRE', base .. 'seen_before', SEEN_MS)
end
