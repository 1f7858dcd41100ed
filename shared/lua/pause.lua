-- pause: from now on `take` hands out nothing of this model. What runs goes on, what comes is admitted up to its bounds,
-- deadlines pass. Idempotent: the first who paused stays the one who did.
-- KEYS[1] counts. ARGV: 1 by, 2 why.
-- Replies {'paused' | 'already', by, why, since (ms)}.
-- include: core, operator
local by, why = unpack(ARGV)
local paused = base .. 'paused'
local is_new = redis.call('HSETNX', paused, 'since', now) == 1
if is_new then
  redis.call('HSET', paused, 'by', by, 'why', why)
  sign('paused', slot, by, why)
end
local known = redis.call('HMGET', paused, 'by', 'why', 'since')
return {is_new and 'paused' or 'already', known[1] or '', known[2] or '', known[3]}
