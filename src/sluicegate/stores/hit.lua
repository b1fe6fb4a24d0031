-- One plan of one check, which is charged if it is allowed. Nearly every plan is one.
--
-- KEYS  the check's
-- ARGV  a tag; three parameters, of which the last may be missing; then, unless they are the usual ones, the cost (1) and
--       the time in microseconds (the server's clock)
-- reply text, because a table costs the server as much as two commands: HEAD, which is the tag, the seconds and the
--       microseconds of the time; and what the algorithm's block adds: see `decode`

local clock = ARGV[6]
--@PROLOGUE
local key, cost, a, b, c = KEYS[1], (ARGV[5] or 1) + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
--@ALGORITHMS
