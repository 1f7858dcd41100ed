-- How classes share: by weight, on one clock, so that none starves. A class's virtual time is the tokens it was
-- served over its weight; the least goes first. Weights come with admissions and stay in `counts`.
local CLASSES = {'priority', 'default', 'flex', 'batch'}
local DEFAULT_WEIGHTS = {priority = 8, default = 4, flex = 1, batch = 1}

local function class_weight(class)
  return tonumber(redis.call('HGET', KEYS[1], 'weight:' .. class) or DEFAULT_WEIGHTS[class] or 1)
end

local function class_vtime(class)
  return tonumber(redis.call('HGET', KEYS[1], 'vtime:' .. class) or '0')
end

local function charge_class(class, tokens)
  redis.call('HINCRBYFLOAT', KEYS[1], 'vtime:' .. class, tokens / class_weight(class))
end

-- The classes in which something waits, least virtual time first.
local function classes_in_turn()
  local found = {}
  for rank, class in ipairs(CLASSES) do
    if redis.call('EXISTS', key('flows', class)) == 1 then
      found[#found + 1] = {name = class, vtime = class_vtime(class), rank = rank}
    end
  end
  table.sort(found, function(a, b)
    if a.vtime == b.vtime then return a.rank < b.rank end
    return a.vtime < b.vtime
  end)
  return found
end

-- A class in which nothing waited begins where the others are: idleness earns no credit.
local function wake_class(class)
  local clock = tonumber(redis.call('HGET', KEYS[1], 'vclock') or '0')
  local first = classes_in_turn()[1]
  if first and first.vtime > clock then clock = first.vtime end
  if class_vtime(class) < clock then redis.call('HSET', KEYS[1], 'vtime:' .. class, clock) end
end

-- A tenant waking up begins where its class is, and never behind the one who is served next.
local function waking_vtime(class, tenant)
  local clock = tonumber(redis.call('HGET', KEYS[1], 'vclock:' .. class) or '0')
  local first = redis.call('ZRANGE', key('flows', class), 0, 0, 'WITHSCORES')
  if first[2] then clock = math.max(clock, tonumber(first[2])) end
  return math.max(tonumber(redis.call('HGET', key('tenant', tenant), 'vtime:' .. class) or '0'), clock)
end

-- Both clocks move to the virtual time of what is served now.
local function advance_clocks(class, tenant)
  local served = {['vclock:' .. class] = tonumber(redis.call('HGET', key('tenant', tenant), 'vtime:' .. class) or '0'),
    vclock = class_vtime(class)}
  for clock, at in pairs(served) do
    if at > tonumber(redis.call('HGET', KEYS[1], clock) or '0') then redis.call('HSET', KEYS[1], clock, at) end
  end
end

-- How many are expected to be taken before a request that has `rank` of its tenant's own before it: what went back;
-- its own; of every other tenant of the class as many, while it has them; of the other classes their share.
-- An estimate: weights of tenants and lengths of answers are left out.
local function ahead_of(class, tenant, rank)
  local retry = 0
  if redis.call('EXISTS', base .. 'q:retry') == 1 then
    retry = redis.call('XLEN', base .. 'q:retry') - redis.call('XPENDING', base .. 'q:retry', 'w')[1]
  end
  local account = redis.call('HGET', key('tenant', tenant), 'waiting:' .. class)
  local waiting = redis.call('HMGET', KEYS[1], 'waiting:priority', 'waiting:default', 'waiting:flex', 'waiting:batch')
  local in_queue = {}
  for i, name in ipairs(CLASSES) do in_queue[name] = tonumber(waiting[i] or '0') end
  local of_others = math.max(0, in_queue[class] - tonumber(account or '0'))
  local flows = redis.call('ZCARD', key('flows', class))
  if redis.call('ZSCORE', key('flows', class), tenant) then flows = flows - 1 end
  local ahead = rank + math.min(of_others, (rank + 1) * flows)
  local in_class = ahead + 1
  for _, other in ipairs(CLASSES) do
    if other ~= class and in_queue[other] > 0 then
      ahead = ahead + math.min(in_queue[other], in_class * class_weight(other) / class_weight(class))
    end
  end
  return retry + math.floor(ahead)
end
