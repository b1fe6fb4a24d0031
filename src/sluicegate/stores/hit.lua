-- One plan of ordinary checks, which are all charged if all are allowed. Nearly every plan is such a plan, and nearly every
-- one has one check. Other plans are for run.lua. Each check is this code again, inside that of the check before it: all
-- are read before any is written, and each keeps what it has read, without a table or a function.
--
-- KEYS  one for each check
-- ARGV  a tag; for each check as many parameters as its algorithm reads; then, unless they are the usual ones, the cost of
--       each check (1) and the time in microseconds (the server's clock)
-- reply text, because a table costs the server as much as two commands: HEAD, which is the tag, the seconds and the
--       microseconds of the time; and what the algorithm's block adds: see `decode`. Of several checks each has one byte,
--       the length of its text, and its text. If a check has refused, the numbers of those that passed are as of cost 0.

local tag, WORDS, clock = unpack(ARGV)
local all = true
--@PROLOGUE
--@HEADS
--@CHECK
do
  local key, cost, a, b, c = KEYS[NUMBER], costNUMBER and costNUMBER + 0 or 1, PARAMETERS
  --@HIT
  if not passed and cost > 0 then all = false end
  --@NEXT
  if all and cost > 0 then
    --@WRITE
  end
  --@TEXT
end
