-- What an operator did, beside what the scripts did, in one audit: with `by` (who) and a reason.
local function sign(action, id, by, why)
  redis.call('XADD', base .. 'events', 'MAXLEN', '~', 10000, '*', 'event', action, 'id', id, 'detail', why, 'by', by)
end
