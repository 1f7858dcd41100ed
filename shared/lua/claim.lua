-- claim: an idempotency key is one model's while a request with it is on its way into that model's queue. Queues are in
-- slots of their own, so what is posted to two models at one instant meets here. A blind repeat holds the same claim.
-- It ends by itself, so a gateway that dies with it costs nothing: the same model may always claim again, and once the
-- request is in its queue, that is where it is found. `admit` takes no request whose claim has run out.
-- KEYS[1] hr:t:{<tenant>}:buckets. ARGV: 1 hash of the key, 2 model, 3 body digest, 4 keep_ms.
-- Replies {'mine', until (ms of the server's clock)} | {'other', its model, the digest it came with}.
-- include: tenant
local claim = base .. 'claim:' .. ARGV[1]
local known = redis.call('HMGET', claim, 'model', 'digest')
if known[1] and known[1] ~= ARGV[2] then return {'other', known[1], known[2]} end
if not known[1] then redis.call('HSET', claim, 'model', ARGV[2], 'digest', ARGV[3]) end
redis.call('PEXPIRE', claim, ARGV[4])
return {'mine', now + ARGV[4]}
