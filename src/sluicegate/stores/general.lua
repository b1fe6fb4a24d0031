-- A hit of any algorithm, by its functions for plans of several checks. They are made only when they are needed.
--@PLAN
local state = open(key, now, a, b, c)
local allowed, remaining, retry, reset, following = check(state, now, cost, a, b, c)
if allowed and cost > 0 then
  --@WRITE
  charge(state, now, cost, a, b, c)
  --@END
  --@SHARED if not all then allowed, remaining, retry, reset, following = check(state, now, 0, a, b, c) end
end
local numbers = string.format('=%.0f %.0f %.0f %.0f %.0f', allowed and 1 or 0, remaining, retry, reset, following)
return HEAD .. numbers --@ALSO allowed
