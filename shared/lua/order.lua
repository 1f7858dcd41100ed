-- order: an operator's command for a worker, to load or unload an adapter. Twice is once: the order has an id.
-- KEYS[1] counts. ARGV: 1 worker, 2 words (JSON array: the command's name, the order's id, arguments), 3 by.
-- Replies {'told'} | {'gone'}.
-- include: core, operator
local worker, words, by = unpack(ARGV)
if redis.call('EXISTS', key('w', worker)) == 0 then return {'gone'} end
local order = cjson.decode(words)
command(worker, order)
sign(order[1], worker, by, words)
return {'told'}
