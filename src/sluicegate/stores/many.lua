-- Plans of one check each, of one rule and at cost 1, in one run. Each is charged or refused separately.
--
-- KEYS  one for each plan
-- ARGV  the time in microseconds, or '' for the server's clock; a tag; the rule's three parameters
-- reply the tag, the time, then for each plan: allowed, remaining, retry_after (-1: never), reset_after, next_after;
--       an error in place of `allowed` for a plan that failed

--@PROLOGUE

local a, b, c = ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local reply, to = {ARGV[2] + 0, now}, 3

local function run(key)
  local state, allowed = open(key, now, a, b, c), nil
  allowed, reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = check(state, now, 1, a, b, c)
  if allowed then charge(state, now, 1, a, b, c) end
  reply[to] = allowed and 1 or 0
end

for _, key in ipairs(KEYS) do
  local done, failure = pcall(run, key)
  if not done then -- an error of one key is the answer of its plan only
    reply[to] = type(failure) == 'table' and failure or {err = failure}
    for field = to + 1, to + 4 do reply[field] = 0 end
  end
  to = to + 5
end
return reply
