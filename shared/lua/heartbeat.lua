-- heartbeat: renews a lease and says what Redis thinks the worker holds, so that a lost reply is found.
-- Rings again where whoever was woken for a request did not come.
-- KEYS[1] counts. ARGV: 1 worker, 2 nonce, 3 lease_ms, 4 load (JSON).
-- Replies {'nolease'} | {'ok', {{id, owner, 'gateway gateway ...'}...}, commands, waiting}.
-- include: core, lease
local worker, nonce, lease_ms, load_json = unpack(ARGV)
if not holds_lease(worker, nonce) then return {'nolease'} end
renew(worker, lease_ms)
redis.call('HSET', key('w', worker), 'load', load_json, 'beat_at', now)
ring()
local mine = {}
for _, id in ipairs(redis.call('ZRANGE', key('own', worker), 0, -1)) do
  local gateways = table.concat(redis.call('SMEMBERS', key('g', id)), ' ')
  mine[#mine + 1] = {id, redis.call('HGET', key('r', id), 'owner') or '', gateways}
end
return {'ok', mine, commands_of(worker), tonumber(redis.call('HGET', KEYS[1], 'waiting') or '0')}
