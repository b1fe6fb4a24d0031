-- Several ordinary checks, which are all charged or none. Other plans are for run.lua. A check that passes asks the next
-- one before it writes, so that nothing is written if one of them refuses.
--
-- KEYS  one for each check
-- ARGV  a tag; for each check its WORDS: the algorithm if there are several, and as many parameters as the algorithm with
--       the most has; then, unless they are the usual ones, the cost of each check (1) and the time in microseconds (the
--       server's clock)
-- reply HEAD as of hit.lua; then for each check one byte, the length of its end, and its end. If a check has refused, the
--       numbers of those that passed are as of cost 0.

local count, asked, tag = #KEYS, 0, ARGV[1]
local costs = WORDS * count + 1
local clock = ARGV[costs + count + 1]
--@PROLOGUE
--@HEADS

-- Asks a check and those that follow it up to the final one. They are charged if all of them pass. Returns whether they do,
-- and their ends. If one refuses, those after it are not asked yet. With 0 for the final one, nothing is charged.
local function hit(i, final)
  local key, cost, all, others, at = KEYS[i], (ARGV[costs + i] or 1) + 0, i <= final, '', WORDS * i
  local NAME a, b, c = unpack(ARGV, at - WORDS + 2, at + 1)
  a, b, asked = a + 0, b + 0, i
  if cost == 0 and i < final then all, others = hit(i + 1, final) end
  --@ALGORITHMS
end

local _, ends = hit(1, count)
while asked < count do
  local _, text = hit(asked + 1, 0)
  ends = ends .. text
end
return HEAD .. ends
