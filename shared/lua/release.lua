-- release: a worker gives a request back, half done or not. Idempotent: only its owner's call counts.
-- Without blame; or, where the engine failed it, with the blame of a crash: only if its journal did not grow, and more
-- than max_crashes of them make it a dead letter.
-- KEYS[1] counts. ARGV: 1 id, 2 owner, 3 max_crashes (0: no blame), 4 retention_s.
-- Replies {'released'} | {'dead'} | {'not_owner'}.
-- include: core, request, dead
local id, owner, max_crashes, retention_s = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local request = load(id)
if not request or request.state ~= 'running' or request.owner ~= owner then return {'not_owner'} end
if max_crashes > 0 then
  local crashes = blame(id, request)
  if crashes > max_crashes then
    bury(id, request, worker_of(owner), crashes, retention_s)
    return {'dead'}
  end
end
requeue(id, request, 'released')
ring()
return {'released'}
