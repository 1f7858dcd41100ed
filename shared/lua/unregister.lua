-- unregister: a worker leaves in order; whatever it still holds goes back without blame. Idempotent.
-- KEYS[1] counts. ARGV: 1 worker, 2 nonce.
-- Replies {'ok', number given back} | {'nolease'}.
-- include: core, lease, request
local worker, nonce = unpack(ARGV)
if not holds_lease(worker, nonce) then return {'nolease'} end
local held = redis.call('ZRANGE', key('own', worker), 0, -1)
for _, id in ipairs(held) do
  local request = load(id)
  if request and request.state == 'running' then requeue(id, request, 'released') end
end
redis.call('DEL', key('w', worker), key('ctl', worker), key('own', worker))
redis.call('ZREM', base .. 'lease', worker)
audit('unregistered', worker, #held)
return {'ok', #held}
