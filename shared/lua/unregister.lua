-- unregister: a worker leaves in order; whatever it still holds goes back without blame. Idempotent.
-- KEYS[1] counts. ARGV: 1 worker, 2 nonce, 3 page: how many go back in one call.
-- Replies {'ok', number given back} | {'more', number given back}: it holds more, call again | {'nolease'}.
-- include: core, lease, request
local worker, nonce, page = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not holds_lease(worker, nonce) then return {'nolease'} end
leave_bell(worker)
redis.call('ZREM', base .. 'idle', worker)
local held = redis.call('ZRANGE', key('own', worker), 0, page - 1)
for _, id in ipairs(held) do
  local request = load(id)
  if request and request.state == 'running' and worker_of(request.owner) == worker then
    requeue(id, request, 'released')
  else
    redis.call('ZREM', key('own', worker), id)
  end
end
ring()
if #held == page then return {'more', #held} end
redis.call('DEL', key('w', worker), key('ctl', worker), key('own', worker))
redis.call('ZREM', base .. 'lease', worker)
audit('unregistered', worker, #held)
return {'ok', #held}
