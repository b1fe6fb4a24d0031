-- Several ordinary checks, which are all charged or none. Other plans are for run.lua. A check that passes asks the next
-- ones before it writes, so that nothing is written if one of them refuses.
--
-- KEYS  one for each check
-- ARGV  a tag; for each check: three parameters, the cost, and the algorithm if there are several; then the time in
--       microseconds, unless it is that of the server's clock
-- reply HEAD as of hit.lua; then for each check one byte, the length of its end, and its end. If a check has refused, the
--       numbers of those that passed are as of cost 0.

local words, count, asked, allowed, ends, rest = 4, #KEYS, 0, true, {}, nil
--@SEVERAL words = 5
local clock = ARGV[words * count + 2]
--@PROLOGUE
--@ALGORITHMS

local function ask(i, cost)
  local at = words * i - words + 1
  --@SEVERAL local hit = algorithms[ARGV[at + 5]]()
  return hit(KEYS[i], now, cost or ARGV[at + 4] + 0, ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3])
end

-- Asks the checks that were not asked yet. Returns whether all checks pass.
function rest()
  while asked < count do
    asked = asked + 1
    local i, passed = asked, nil
    ends[i], passed = ask(i)
    allowed = allowed and passed
  end
  return allowed
end

rest()
local reply = HEAD
for i = 1, count do
  if not allowed and string.sub(ends[i], 1, 2) == '=1' then ends[i] = ask(i, 0) end -- integers of an outcome
  reply = reply .. string.char(#ends[i]) .. ends[i]
end
return reply
