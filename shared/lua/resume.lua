-- resume: `take` hands out this model's work again, and as many workers are woken as requests wait. Idempotent.
-- KEYS[1] counts. ARGV: 1 by.
-- Replies {'resumed'} | {'not_paused'}.
-- include: core, operator
if redis.call('DEL', base .. 'paused') == 0 then return {'not_paused'} end
sign('resumed', slot, ARGV[1], '')
ring()
return {'resumed'}
