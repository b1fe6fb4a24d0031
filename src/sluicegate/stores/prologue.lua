-- The beginning of every script: the time, the expiry of keys, and the algorithms of its checks.
--
-- clock  the time in microseconds; nil for the server's clock
--
-- Numbers are doubles below 2^53. Below that, a quotient that is no integer is never rounded to an integer: math.ceil,
-- math.floor and % divide integers exactly. Servers store numbers without loss. But Redis 7.2.0 to 7.2.4 write a multiple
-- of 10^8 as 1e+8. They read it again as the same number, but do not accept it as an expiry. Lua's `..` writes only the
-- first 14 digits of a number.
--
-- An algorithm is five functions. hit.lua, many.lua and several.lua use the first one, run.lua the next three, and
-- refund.lua the last three. Lines --@HIT, --@PLAN and --@REFUND begin these parts. a, b, c are its parameters.
--   hit(key, now, cost, a, b, c, dry, known)  -> text that `decode` makes the outcome of; allowed; what was read, or nil
--                                                     charges if it is allowed and not dry; c may be text; `known` is
--                                                     what a dry call with the same arguments has read
--   open(key, now, a, b, c)                   -> state   the stored state as of now
--   check(state, now, cost, a, b, c)          -> allowed, remaining, retry_after, reset_after, next_after
--   charge(state, now, cost, a, b, c)                    writes; the state must not be used again
--   refund(state, now, cost, at, a, b, c)                writes; the state must not be used again

local NEVER = -1

-- Seconds and microseconds. A ManualClock stands still while the server's clock runs, so its keys live an hour longer.
local time, slack = clock and {0, clock} or redis.call('TIME'), clock and 3600003 or 3
local now = time[1] * 1000000 + time[2]

-- Milliseconds that are longer than `wait` microseconds, even if the server rounds its clock down; always odd.
local function expiry(wait) return (wait - wait % 2000) / 1000 + slack end

--@ALGORITHMS
