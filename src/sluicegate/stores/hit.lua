-- One plan of one check, which is charged if it is allowed. Nearly every plan is one.
--
-- KEYS  the check's
-- ARGV  a tag; three parameters, of which the last may be missing; then, unless they are the usual ones, the cost (1) and
--       the time in microseconds (the server's clock)
-- reply text, because a table costs the server as much as two commands: HEAD, which is the tag, the seconds and the
--       microseconds of the time; and what the algorithm's block adds: see `decode`

local tag, a, b, c, cost, clock = unpack(ARGV)
--@PROLOGUE
local key = KEYS[1]
a, b, cost = a + 0, b + 0, (cost or 1) + 0
--@ALGORITHMS
