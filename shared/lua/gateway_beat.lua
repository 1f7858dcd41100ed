-- gateway_beat: a gateway says it lives ('' only asks); gateways late by more than the grace are named.
-- KEYS[1] hr:gateways. ARGV: 1 gateway ('' = none), 2 lease_ms, 3 grace_ms.
-- Replies the names of dead gateways.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[1] ~= '' then redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1]) end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[3], 'LIMIT', 0, 100)
