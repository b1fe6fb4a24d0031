-- What earlier runs charged, given back: each cost to the window that it was taken from, or to nobody.
--
-- KEYS  one for each check
-- ARGV  the time in microseconds, or '' for the server's own; a tag;
--       then for each check: algorithm, the time of the charge, cost, three parameters
-- reply the tag

--@PROLOGUE

for i, key in ipairs(KEYS) do
  local first = 6 * i - 3
  local at, cost = ARGV[first + 1] + 0, ARGV[first + 2] + 0
  local a, b, c = ARGV[first + 3] + 0, ARGV[first + 4] + 0, ARGV[first + 5] + 0
  --@SEVERAL local open, refund = algorithms[ARGV[first]]()
  refund(open(key, now, a, b, c), now, cost, at, a, b, c)
end
return {ARGV[2] + 0}
