-- drain: tells a worker to take nothing more, end what runs (or give it back: 'now') and leave; it is rung no more.
-- Idempotent: a worker obeys the same command twice as once, so whoever doubts that it was heard sends it again.
-- KEYS[1] counts. ARGV: 1 worker, 2 how ('' = finish by its own deadline, 'now' = give everything back), 3 by.
-- Replies {'told'} | {'gone'}.
-- include: core, operator
local worker, how, by = unpack(ARGV)
if redis.call('EXISTS', key('w', worker)) == 0 then return {'gone'} end
redis.call('HSETNX', key('w', worker), 'draining', now)
redis.call('ZREM', base .. 'idle', worker)
command(worker, how == '' and {'drain'} or {'drain', how})
sign('drain', worker, by, how)
return {'told'}
