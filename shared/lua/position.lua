-- position: how many are expected to be taken before each of these requests. Reads only. An estimate (see share.lua);
-- beyond PAGE of a tenant's own before it, their number is taken from the time it has waited.
-- KEYS[1] counts. ARGV: ids.
-- Replies, for each id in order, {'gone'} | {'waiting', ahead} | {another state}.
-- include: core, request, share
local PAGE = 256
local replies = {}

local function ms_of(entry)
  return tonumber(string.match(entry, '^%d+'))
end

-- Requests of the same stream that are delivered before this one.
local function rank_of(request)
  local stream, last = base .. request.stream, last_delivered(request.stream)
  local page = redis.call('XRANGE', stream, '(' .. last, '(' .. request.entry, 'COUNT', PAGE)
  if #page < PAGE then return #page end
  local first, newest = ms_of(page[1][1]), ms_of(redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1][1])
  local part = (ms_of(request.entry) - first) / math.max(1, newest - first)
  return math.max(PAGE, math.floor(part * redis.call('XLEN', stream)))
end

for i, id in ipairs(ARGV) do
  local request = load(id)
  if not request then
    replies[i] = {'gone'}
  elseif request.state ~= 'waiting' then
    replies[i] = {request.state}
  elseif request.stream == 'q:retry' then
    replies[i] = {'waiting', rank_of(request)}
  else
    replies[i] = {'waiting', ahead_of(request.class, request.tenant, rank_of(request))}
  end
end
return replies
