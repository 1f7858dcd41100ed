-- What waits in one stream of a queue. Reads only.

-- When the first undelivered entry came, and how many there are.
local function undelivered(stream)
  if redis.call('EXISTS', base .. stream) == 0 then return 0, 0 end
  local group = redis.call('XINFO', 'GROUPS', base .. stream)[1]
  local fields = {}
  for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
  local entries = redis.call('XRANGE', base .. stream, '(' .. fields['last-delivered-id'], '+', 'COUNT', 1)
  local oldest = #entries > 0 and tonumber(string.match(entries[1][1], '^%d+')) or 0
  return oldest, redis.call('XLEN', base .. stream) - fields['pending']
end
