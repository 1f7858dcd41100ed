-- attach: one more gateway hears a request's events; its worker is told to publish there. Idempotent.
-- KEYS[1] counts. ARGV: 1 id, 2 gateway.
-- Replies {'gone'} | {state, owner, journal length}.
-- include: core, request
local id, gateway = unpack(ARGV)
local request = load(id)
if not request then return {'gone'} end
if not is_done(request.state) then
  redis.call('SADD', key('g', id), gateway)
  redis.call('SADD', key('att', gateway), id)
  if request.state == 'running' then command(worker_of(request.owner), {'attach', id, gateway}) end
end
return {request.state, request.owner, redis.call('STRLEN', key('j', id))}
