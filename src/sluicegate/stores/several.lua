-- Several ordinary checks, which are all charged or none. Other plans are for run.lua.
-- All but the last check are asked first and charged later: most plans pass.
--
-- KEYS  one for each check
-- ARGV  a tag; for each check: three parameters, the cost, and the algorithm if there are several; then the time in
--       microseconds, unless it is that of the server's clock
-- reply the beginning of every reply of hit.lua; then for each check one byte, the length of its end, and its end. If a
--       check has refused, the numbers of those that passed are as of cost 0.

local words = 4
--@SEVERAL words = 5
local clock = ARGV[words * #KEYS + 2]
--@PROLOGUE

local function ask(i, peek, dry, known)
  local at = words * i - words + 1
  --@SEVERAL local hit = algorithms[ARGV[at + 5]]()
  local cost, a, b = peek and 0 or ARGV[at + 4] + 0, ARGV[at + 1] + 0, ARGV[at + 2] + 0
  return hit(KEYS[i], now, cost, a, b, ARGV[at + 3], dry, known)
end

local last, allowed, ends, read = #KEYS, true, {}, {}
for i = 1, last do
  local passed
  ends[i], passed, read[i] = ask(i, false, i < last or not allowed)
  allowed = allowed and passed
end
for i = 1, last do
  if allowed then
    if i < last then ask(i, false, false, read[i]) end
  elseif string.sub(ends[i], 1, 2) == '=1' then -- integers of an outcome that passed
    ends[i] = ask(i, true, true)
  end
end

local reply = ARGV[1] .. ' ' .. time[1] .. ' ' .. time[2] .. ' '
for i = 1, last do reply = reply .. string.char(#ends[i]) .. ends[i] end
return reply
