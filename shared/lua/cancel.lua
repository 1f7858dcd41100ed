-- cancel: ends a request at once; its worker lets go at its next step. Idempotent.
-- KEYS[1] counts. ARGV: 1 id, 2 retention_s, 3 by (the operator who asked; '' or none: a client did).
-- Replies {'cancelled'} | {'gone'} | {the state it had already ended in}.
-- include: core, request, operator
local id, retention_s, by = unpack(ARGV)
local request = load(id)
if not request then return {'gone'} end
if is_done(request.state) then return {request.state} end
end_request(id, request, 'cancelled', 'request_cancelled', 'the request was cancelled', retention_s)
if by and by ~= '' then
  redis.call('HSET', key('r', id), 'ended_by', by)
  sign('cancel', id, by, request.state)
end
return {'cancelled'}
