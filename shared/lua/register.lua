-- register: a worker announces itself and gets its lease. Idempotent.
-- KEYS[1] counts. ARGV: 1 worker, 2 nonce, 3 lease_ms, 4 info (JSON).
-- Replies {'ok'}.
-- include: core, lease
local worker, nonce, lease_ms, info = unpack(ARGV)
redis.call('HSET', key('w', worker), 'nonce', nonce, 'registered_at', now, 'beat_at', now, 'info', info)
renew(worker, lease_ms)
audit('registered', worker, info)
return {'ok'}
