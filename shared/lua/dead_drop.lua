-- dead_drop: an operator is done with a dead letter: entry and body go, hash and journal a while later. Idempotent.
-- KEYS[1] counts. ARGV: 1 id, 2 retention_s, 3 action ('dropped' | 'retried'), 4 detail (the new id of a retry), 5 by.
-- Replies {'dropped'} | {'gone'}.
-- include: core, request, dead, operator
local id, retention_s, action, detail, by = unpack(ARGV)
if not drop_letter(id, retention_s) then return {'gone'} end
if action == 'retried' then redis.call('HSET', key('r', id), 'retried_as', detail) end
sign(action, id, by, detail)
return {'dropped'}
