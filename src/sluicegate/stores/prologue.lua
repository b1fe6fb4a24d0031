-- The beginning of every script: the time, and for plans the expiry of keys.
--
-- clock  the time in microseconds; nil for the server's clock
--
-- Numbers are doubles below 2^53. Below that, a quotient that is no integer is never rounded to an integer: math.ceil,
-- math.floor and % divide integers exactly. Servers store numbers without loss. But Redis 7.2.0 to 7.2.4 write a multiple
-- of 10^8 as 1e+8. They read it again as the same number, but do not accept it as an expiry. Lua's `..` writes only the
-- first 14 digits of a number.
--
-- An algorithm is a block of code and four functions. hit.lua and many.lua use the block, run.lua the first three functions,
-- and refund.lua the last three. Its file has, in this order and each after a line with its name: HIT, WRITE and TEXT, the
-- parts of the block; PLAN, the first three functions; REFUND.
--   the block has key, now, cost, a, b, c, of which c may be text or nil, and `all`: whether all checks of the plan pass
--     HIT     reads, and says in `passed` whether the check is allowed, except at cost 0. A line FUNCTIONS becomes the
--             first three functions: they are made only when they are needed
--     WRITE   charges the check; runs after HIT of every check of the plan, if all pass and the cost is not 0
--     TEXT    sets `text`, of which `decode` makes the outcome
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
