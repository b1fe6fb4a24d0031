-- What every script begins with: the time, how a key expires, and the algorithms that its checks use.
--
-- ARGV[1]  the time in microseconds, or '' for the server's own
--
-- Numbers are doubles and stay below 2^53. So far a quotient that is no integer is never rounded to one: with math.ceil,
-- math.floor and % integers are divided exactly. Servers take numbers as they are and lose nothing; but Redis 7.2.0 to
-- 7.2.4 write a multiple of 10^8 as 1e+8, which they read again as the same number, only not where they want an expiry.
--
-- An algorithm is four functions; those after its line --@REFUND are for refund.lua alone. a, b, c are its parameters.
--   open(key, now, a, b, c)                   -> state   what is kept, as it stands now
--   check(state, now, cost, a, b, c)          -> allowed, remaining, retry_after, reset_after, next_after
--   charge(state, now, cost, a, b, c)                    writes, and uses the state up
--   refund(state, now, cost, at, a, b, c)                writes, and uses the state up

local NEVER = -1

local now, slack = nil, 3
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now, slack = ARGV[1] + 0, 3600003 -- a clock moved by hand stands still while the server's runs
end

-- Milliseconds that outlast so many microseconds, though the server may round its own clock down; always odd.
local function expiry(wait) return (wait - wait % 2000) / 1000 + slack end

--@ALGORITHMS
