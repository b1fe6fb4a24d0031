-- Refunds what earlier runs charged: each cost to its window. Nothing is refunded if that window has passed.
--
-- KEYS  one for each check
-- ARGV  the time in microseconds, or '' for the server's clock; the mode: '0' refunds, '1' refunds and charges again as
--       of now, whatever else is charged; a tag;
--       then for each check: algorithm, the time of the charge, cost, three parameters
-- reply the tag, the time

local clock = ARGV[1] ~= '' and ARGV[1]
--@PROLOGUE

for i, key in ipairs(KEYS) do
  local first = 6 * i - 2
  local at, cost = ARGV[first + 1] + 0, ARGV[first + 2] + 0
  local a, b, c = ARGV[first + 3] + 0, ARGV[first + 4] + 0, ARGV[first + 5] + 0
  --@SEVERAL local open, charge, refund = algorithms[ARGV[first]]()
  refund(open(key, now, a, b, c), now, cost, at, a, b, c)
  if ARGV[2] == '1' then charge(open(key, now, a, b, c), now, cost, a, b, c) end
end
return {ARGV[3] + 0, now}
