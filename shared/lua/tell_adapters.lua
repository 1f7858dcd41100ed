-- tell_adapters: a worker says how each of its adapters stands, for operators to read. Idempotent.
-- KEYS[1] counts. ARGV: 1 worker, 2 nonce, 3 adapters (JSON).
-- Replies {'nolease'} | {'ok'}.
-- include: core, lease
local worker, nonce, adapters = unpack(ARGV)
if not holds_lease(worker, nonce) then return {'nolease'} end
redis.call('HSET', key('w', worker), 'adapters', adapters)
return {'ok'}
