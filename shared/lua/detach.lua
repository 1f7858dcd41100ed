-- detach: a gateway has nobody left who listens; the last one to leave cancels, unless the request is detached or
-- carries an idempotency key (its client may come back for the answer).
-- A repeat gets the answer again that the first call had, whatever has happened since: who left while the request went
-- on is no member of `g` any more, who was there when it ended (or ended it by leaving) stays one.
-- KEYS[1] counts. ARGV: 1 id, 2 gateway, 3 retention_s.
-- Replies {'gone'} | {'left'} | {'cancelled'} | {the state it had ended in before}.
-- include: core, request
local id, gateway, retention_s = unpack(ARGV)
redis.call('SREM', key('att', gateway), id)
local request = load(id)
if not request then return {'gone'} end
if is_done(request.state) then return {redis.call('SISMEMBER', key('g', id), gateway) == 1 and request.state or 'left'} end
redis.call('SREM', key('g', id), gateway)
if redis.call('SCARD', key('g', id)) == 0 and request.detached ~= '1' and not request.idem then
  end_request(id, request, 'cancelled', 'request_cancelled', 'the client went away', retention_s)
  redis.call('SADD', key('g', id), gateway)
  redis.call('EXPIRE', key('g', id), retention_s)
  return {'cancelled'}
end
if request.state == 'running' then command(worker_of(request.owner), {'detach', id, gateway}) end
return {'left'}
