-- overview: who waits and who runs, by class and tenant, in one consistent look. Reads only.
-- Running ones are counted from what live and late workers own, so the sums can be held against `counts`.
-- KEYS[1] counts. ARGV: 1 tenants a class (those whose turn comes next first), 2 running requests looked at.
-- Replies {now (ms), flows, {oldest in q:retry (ms, 0 = none), number there}}
--   flows: {class, tenant, waiting, oldest (ms), running, virtual time, weight}.
-- include: core, undelivered
local max_tenants, max_running = tonumber(ARGV[1]), tonumber(ARGV[2])
local flows, index = {}, {}

local function flow(class, tenant)
  local name = class .. ' ' .. tenant
  if not index[name] then
    local account = redis.call('HMGET', key('tenant', tenant), 'vtime:' .. class, 'weight')
    local row = {class, tenant, 0, 0, 0, account[1] or '0', account[2] or '1'}
    flows[#flows + 1] = row
    index[name] = row
  end
  return index[name]
end

for _, class in ipairs({'priority', 'default', 'flex', 'batch'}) do
  for _, tenant in ipairs(redis.call('ZRANGE', key('flows', class), 0, max_tenants - 1)) do
    local row = flow(class, tenant)
    row[4], row[3] = undelivered('q:' .. class .. ':' .. tenant)
  end
end
for _, worker in ipairs(redis.call('ZRANGE', base .. 'lease', 0, -1)) do
  for _, id in ipairs(redis.call('ZRANGE', key('own', worker), 0, max_running - 1)) do
    max_running = max_running - 1
    local request = redis.call('HMGET', key('r', id), 'class', 'tenant')
    if request[1] then
      local row = flow(request[1], request[2])
      row[5] = row[5] + 1
    end
  end
end
return {now, flows, {undelivered('q:retry')}}
