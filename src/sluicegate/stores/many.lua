-- Plans of one check each, of one rule and at cost 1, in one run: each is charged or refused for itself.
--
-- KEYS  one for each plan
-- ARGV  the time in microseconds, or '' for the server's own; a tag; the rule's three parameters
-- reply the tag, the time, then for each plan: allowed, remaining, retry_after (-1: never), reset_after, next_after

--@PROLOGUE

local a, b, c = ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local reply, to = {ARGV[2] + 0, now}, 3
for _, key in ipairs(KEYS) do
  local state, allowed = open(key, now, a, b, c), nil
  allowed, reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = check(state, now, 1, a, b, c)
  if allowed then charge(state, now, 1, a, b, c) end
  reply[to], to = allowed and 1 or 0, to + 5
end
return reply
