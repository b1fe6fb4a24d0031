-- The beginning of every script: the time, and for plans the expiry of keys.
--
-- clock  the time in microseconds; nil for the server's clock
--
-- Numbers are doubles below 2^53. Below that, a quotient that is no integer is never rounded to an integer: math.ceil,
-- math.floor and % divide integers exactly. Servers store numbers without loss. But Redis 7.2.0 to 7.2.4 write a multiple
-- of 10^8 as 1e+8. They read it again as the same number, but do not accept it as an expiry. Lua's `..` writes only the
-- first 14 digits of a number.
--
-- An algorithm is a block of code and four functions. hit.lua, many.lua and several.lua use the block, run.lua the first
-- three functions, and refund.lua the last three. Lines --@HIT, --@PLAN and --@REFUND begin these parts. a, b, c are its
-- parameters.
--   the block: charges a check if it is allowed; has key, now, cost, a, b, c, of which c may be text or nil
--                                             -> text that begins with HEAD, of which `decode` makes the outcome. --@ALSO
--                                                     says whether it is allowed. In several.lua, what is between
--                                                     --@WRITE and --@END runs only if all checks pass, and lines
--                                                     --@SHARED know it by `all`. A block has no name `i`, `final`,
--                                                     `all` or `others`, and no other algorithm's names before --@HIT
--   open(key, now, a, b, c)                   -> state   the stored state as of now
--   check(state, now, cost, a, b, c)          -> allowed, remaining, retry_after, reset_after, next_after
--   charge(state, now, cost, a, b, c)                    writes; the state must not be used again
--   refund(state, now, cost, at, a, b, c)                writes; the state must not be used again

local call = redis.call

-- Seconds and microseconds. A ManualClock stands still while the server's clock runs, so its keys live an hour longer.
local time, slack = clock and {0, clock} or call('TIME'), clock and 3600003 or 3
local now = time[1] * 1000000 + time[2]
--@PLAN
local NEVER = -1

-- Milliseconds that are longer than `wait` microseconds, even if the server rounds its clock down; always odd. A block
-- writes the same, because a function costs time in every run.
local function expiry(wait) return (wait - wait % 2000) / 1000 + slack end
--@ALGORITHMS
