-- emit: a step's tokens enter the journals and go out to the gateways, or the reply names what may not.
-- Compare-and-append on the byte offset makes a repeat harmless; a request that is not this owner's is fenced.
-- If any request is bad nothing is published: the worker resends without it, and what was appended is `already there`.
-- The hot path is two commands a request: what it costs is in docs/benchmarks.md (`make bench-protocol`).
-- KEYS[1] counts. ARGV: 1 worker, 2 nonce, 3 lease_ms, 4 retention_s,
--   5 the step, msgpack: [[id, owner, offset (bytes), frames, num_tokens in them, all tokens of the journal or 0 (told
--   now and then), ... the next request], {id: [state, usage JSON, error code or '']} of those that end],
--   then (gateway, payload)*.
-- Replies {'nolease'} | {'ok' | 'bad', {{id, 'fenced'} | {id, 'lost', length}...}, commands, waiting}.
-- include: core, lease, request, share
local worker, nonce, lease_ms, retention_s = unpack(ARGV, 1, 4)
if not holds_lease(worker, nonce) then return {'nolease'} end
renew(worker, lease_ms)
local call = redis.call
local hashes, journals = base .. 'r:', base .. 'j:'
local bad, charges = {}, {}
local step, ends = unpack(cmsgpack.unpack(ARGV[5]))

-- True when `frames` continue the journal and are in it now; otherwise it is as it was. One command where a
-- look at the length first would be two.
local function try_append(journal, offset, frames)
  local length = call('APPEND', journal, frames)
  if length == offset + #frames then return true end
  local before = length - #frames
  if before == 0 then
    call('DEL', journal)
  else
    call('SET', journal, call('GETRANGE', journal, 0, before - 1), 'KEEPTTL')
  end
  return false
end

-- 'append' with what is still to append, 'there' for a repeat, or 'fenced' / 'lost'.
local function verdict(journal, state, is_owner, offset, frames)
  if not is_owner then return 'fenced' end
  local length = call('STRLEN', journal)
  if length < offset then return 'lost', length end
  if length == offset then
    if state ~= 'running' then return 'fenced' end
    return 'append', frames
  end
  local there = call('GETRANGE', journal, offset, offset + #frames - 1)
  if there == frames then return 'there' end
  if state == 'running' and offset + #there == length and there == string.sub(frames, 1, #there) then
    return 'append', string.sub(frames, #there + 1)
  end
  return 'fenced'
end

-- `counted` is the length of the journal that `tokens` speaks of; what came since is counted where it matters.
local function note_tokens(id, hash, total, length)
  call('HSET', hash, 'tokens', total, 'counted', length)
  if call('HSETNX', hash, 'first_token_at', now) == 1 then
    meet_start_deadline(id, call('HGET', hash, 'deadline'))
  end
end

local function account(fields, num_tokens)
  local class, tenant = fields[3], fields[4]
  local tenants = charges[class] or {}
  charges[class] = tenants
  tenants[tenant] = (tenants[tenant] or 0) + num_tokens
end

-- A repeat shows at its first request: then every length is looked at before anything is appended.
local is_repeat = #step > 0 and call('STRLEN', journals .. step[1]) ~= step[3]
for i = 1, #step, 6 do
  local id, owner, offset, frames, num_tokens = step[i], step[i + 1], step[i + 2], step[i + 3], step[i + 4]
  local hash, journal = hashes .. id, journals .. id
  local fields = call('HMGET', hash, 'owner', 'state', 'class', 'tenant')
  local is_owner, state = fields[1] == owner, fields[2]
  local is_new = not is_repeat and is_owner and state == 'running' and try_append(journal, offset, frames)
  if not is_new then
    local what, detail = verdict(journal, state, is_owner, offset, frames)
    if what == 'append' then
      call('APPEND', journal, detail)
      is_new = true
      -- What was partly there already is charged already.
      num_tokens = #detail == #frames and num_tokens or tokens_in(detail)
    elseif what ~= 'there' then
      bad[#bad + 1] = {id, what, detail}
    end
  end
  if is_new then
    if step[i + 5] > 0 then note_tokens(id, hash, step[i + 5], offset + #frames) end
    if num_tokens > 0 then account(fields, num_tokens) end
    if ends[id] then
      call('HSET', hash, 'usage', ends[id][2])
      if ends[id][3] ~= '' then call('HSET', hash, 'error', ends[id][3]) end
      settle(id, load(id), ends[id][1], retention_s)
    end
  end
end
for class, tenants in pairs(charges) do
  local total = 0
  for tenant, tokens in pairs(tenants) do
    charge(tenant, class, tokens)
    total = total + tokens
  end
  charge_class(class, total)
end
if #bad == 0 then
  for i = 6, #ARGV, 2 do call('PUBLISH', 'hr:out:' .. slot .. ':' .. ARGV[i], ARGV[i + 1]) end
end
local waiting = tonumber(call('HGET', KEYS[1], 'waiting') or '0')
return {#bad == 0 and 'ok' or 'bad', bad, commands_of(worker), waiting}
