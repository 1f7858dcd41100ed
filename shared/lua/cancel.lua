-- cancel: ends a request at once; its worker lets go at its next step. Idempotent.
-- KEYS[1] counts. ARGV: 1 id, 2 retention_s.
-- Replies {'cancelled'} | {'gone'} | {the state it had already ended in}.
-- include: core, request
local id, retention_s = unpack(ARGV)
local request = load(id)
if not request then return {'gone'} end
if is_done(request.state) then return {request.state} end
end_request(id, request, 'cancelled', 'request_cancelled', 'the request was cancelled', retention_s)
return {'cancelled'}
