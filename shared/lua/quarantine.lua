-- quarantine: a worker that keeps failing says that it takes nothing, why, and until when; or that it is over. It has no
-- lease meanwhile, so it counts as nobody's. Idempotent. Those that did not speak again in time are forgotten.
-- KEYS[1] counts. ARGV: 1 worker, 2 what it says (JSON with `why`), '' = it is over, 3 keep_ms.
-- Replies {'ok'}.
-- include: core
local worker, said, keep_ms = ARGV[1], ARGV[2], ARGV[3]
local fields = redis.call('HGETALL', base .. 'quarantine')
for i = 1, #fields, 2 do
  if tonumber(string.match(fields[i + 1], '^%d+')) < now then redis.call('HDEL', base .. 'quarantine', fields[i]) end
end
if said == '' then
  if redis.call('HDEL', base .. 'quarantine', worker) == 1 then audit('quarantine_over', worker, '') end
  return {'ok'}
end
local is_new = redis.call('HSET', base .. 'quarantine', worker, string.format('%d %s', now + keep_ms, said)) == 1
if is_new then audit('quarantined', worker, said) end
return {'ok'}
