-- repair: a gateway's delivered prefix against the journal. What a client has seen is never contradicted.
-- KEYS[1] counts. ARGV: 1 id, 2 gateway, 3 delivered length (bytes), 4 its SHA-1 (hex), 5 owner last accepted ('' = none),
--   6 the prefix itself ('' unless the last reply was 'mismatch').
-- Replies {'gone'}                            no hash: admit it again with body and prefix
--   | {'tail', state, owner, bytes after the prefix}
--   | {'wait'}                                the same live attempt still holds the bytes and will send them again
--   | {'mismatch'}                            call again with the prefix
--   | {'requeued'}                            the journal is now the prefix, and the request waits
--   | {'contradiction'}                       no answer can continue what this client saw.
-- include: core, request
local id, gateway, length, digest, owner, prefix = unpack(ARGV)
length = tonumber(length)
local request = load(id)
if not request then return {'gone'} end
if not is_done(request.state) and redis.call('SADD', key('g', id), gateway) == 1 then
  redis.call('SADD', key('att', gateway), id)
  if request.state == 'running' then command(worker_of(request.owner), {'attach', id, gateway}) end
end

local have = redis.call('STRLEN', key('j', id))
local common = math.min(have, length)
if have >= length then
  local head = length > 0 and redis.call('GETRANGE', key('j', id), 0, length - 1) or ''
  if redis.sha1hex(head) == digest then
    return {'tail', request.state, request.owner, redis.call('GETRANGE', key('j', id), length, -1)}
  end
elseif request.state == 'running' and request.owner == owner then
  return {'wait'}
end
if is_done(request.state) then return {'contradiction'} end
if prefix == '' then return {'mismatch'} end

-- Another witness has already set the journal: its bytes were seen by a client and stay.
local witnessed = tonumber(redis.call('HGET', key('r', id), 'witnessed') or '0')
local kept = math.min(witnessed, common)
if kept > 0 and redis.call('GETRANGE', key('j', id), 0, kept - 1) ~= string.sub(prefix, 1, kept) then
  return {'contradiction'}
end
if witnessed > length then return {'contradiction'} end
redis.call('SET', key('j', id), prefix)
local tokens = tokens_in(prefix)
redis.call('HSET', key('r', id), 'witnessed', length)
request.tokens, request.counted = tokens, length
if tokens > 0 then meet_start_deadline(id, request.deadline) end
requeue(id, request, 'requeued')
ring()
return {'requeued'}
