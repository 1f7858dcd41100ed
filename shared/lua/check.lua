-- check: how far the journals of a gateway's requests are; one call for all of them.
-- KEYS[1] counts. ARGV: ids.
-- Replies, for each id in order, {'gone'} | {state, journal length, owner}.
-- include: core
local replies = {}
for i, id in ipairs(ARGV) do
  local fields = redis.call('HMGET', key('r', id), 'state', 'owner')
  if fields[1] then
    replies[i] = {fields[1], redis.call('STRLEN', key('j', id)), fields[2]}
  else
    replies[i] = {'gone'}
  end
end
return replies
