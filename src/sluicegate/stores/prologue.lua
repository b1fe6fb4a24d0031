-- The beginning of every script: the time, the expiry of keys, and the algorithms of its checks.
--
-- ARGV[1]  the time in microseconds, or '' for the server's clock
--
-- Numbers are doubles below 2^53. Below that, a quotient that is no integer is never rounded to an integer: math.ceil,
-- math.floor and % divide integers exactly. Servers store numbers without loss. But Redis 7.2.0 to 7.2.4 write a multiple
-- of 10^8 as 1e+8. They read it again as the same number, but do not accept it as an expiry.
--
-- An algorithm is four functions. Those after its line --@REFUND are only for refund.lua. a, b, c are its parameters.
--   open(key, now, a, b, c)                   -> state   the stored state as of now
--   check(state, now, cost, a, b, c)          -> allowed, remaining, retry_after, reset_after, next_after
--   charge(state, now, cost, a, b, c)                    writes; the state must not be used again
--   refund(state, now, cost, at, a, b, c)                writes; the state must not be used again

local NEVER = -1

local now, slack = nil, 3
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now, slack = ARGV[1] + 0, 3600003 -- a ManualClock stands still while the server's clock runs
end

-- Milliseconds that are longer than `wait` microseconds, even if the server rounds its clock down; always odd.
local function expiry(wait) return (wait - wait % 2000) / 1000 + slack end

--@ALGORITHMS
