-- release: a worker gives a request back, half done or not, without blame. Idempotent: only its owner's call counts.
-- KEYS[1] counts. ARGV: 1 id, 2 owner.
-- Replies {'released'} | {'not_owner'}.
-- include: core, request
local id, owner = unpack(ARGV)
local request = load(id)
if not request or request.state ~= 'running' or request.owner ~= owner then return {'not_owner'} end
requeue(id, request, 'released')
ring()
return {'released'}
