-- emit: a step's tokens enter the journals and go out to the gateways, or the reply names what may not.
-- Compare-and-append on the byte offset makes a repeat harmless; a request that is not this owner's is fenced.
-- If any request is bad nothing is published: the worker resends without it, and what was appended is `already there`.
-- KEYS[1] counts. ARGV: 1 worker, 2 nonce, 3 lease_ms, 4 retention_s, 5 num_gateways, then (gateway, payload)*,
--   then per request: id, owner, offset, frames, num_tokens, final state ('' = goes on), usage (JSON or '').
-- Replies {'nolease'} | {'ok' | 'bad', {{id, 'fenced'} | {id, 'lost', length}...}, commands, waiting}.
-- include: core, lease, request
local worker, nonce, lease_ms, retention_s = unpack(ARGV, 1, 4)
if not holds_lease(worker, nonce) then return {'nolease'} end
renew(worker, lease_ms)
local num_gateways = tonumber(ARGV[5])
local bad, charges = {}, {}

-- 'append' with what is still to append, 'there' for a repeat, or 'fenced' / 'lost'.
local function verdict(id, state, is_owner, offset, frames)
  if not is_owner then return 'fenced' end
  local length = redis.call('STRLEN', key('j', id))
  if length < offset then return 'lost', length end
  if length == offset then
    if state ~= 'running' then return 'fenced' end
    return 'append', frames
  end
  local there = redis.call('GETRANGE', key('j', id), offset, offset + #frames - 1)
  if there == frames then return 'there' end
  if state == 'running' and offset + #there == length and there == string.sub(frames, 1, #there) then
    return 'append', string.sub(frames, #there + 1)
  end
  return 'fenced'
end

local function append(id, fields, rest, num_tokens)
  redis.call('APPEND', key('j', id), rest)
  if num_tokens == 0 then return end
  if redis.call('HINCRBY', key('r', id), 'tokens', num_tokens) == num_tokens then
    redis.call('HSET', key('r', id), 'first_token_at', now)
    meet_start_deadline(id, fields[5])
  end
  local account = fields[4] .. ' ' .. fields[3]
  charges[account] = (charges[account] or 0) + num_tokens
end

for i = 6 + 2 * num_gateways, #ARGV, 7 do
  local id, owner, offset, frames, num_tokens, final, usage = unpack(ARGV, i, i + 6)
  local fields = redis.call('HMGET', key('r', id), 'owner', 'state', 'tenant', 'class', 'deadline')
  local what, detail = verdict(id, fields[2], fields[1] == owner, tonumber(offset), frames)
  if what == 'append' then
    -- What was partly there already is counted already.
    append(id, fields, detail, #detail == #frames and tonumber(num_tokens) or tokens_in(detail))
    if final ~= '' then
      redis.call('HSET', key('r', id), 'usage', usage)
      settle(id, load(id), final, retention_s)
    end
  elseif what ~= 'there' then
    bad[#bad + 1] = {id, what, detail}
  end
end
for account, tokens in pairs(charges) do
  local class, tenant = string.match(account, '^(%S+) (.*)$')
  charge(tenant, class, tokens)
end
if #bad == 0 then
  for i = 0, num_gateways - 1 do
    redis.call('PUBLISH', 'hr:out:' .. slot .. ':' .. ARGV[6 + 2 * i], ARGV[7 + 2 * i])
  end
end
local waiting = tonumber(redis.call('HGET', KEYS[1], 'waiting') or '0')
return {#bad == 0 and 'ok' or 'bad', bad, commands_of(worker), waiting}
