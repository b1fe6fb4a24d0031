-- The `hit` of any algorithm, by its functions for plans of several checks. They are made only when it is called.
local function general(key, now, cost, a, b, c, dry)
  --@PLAN
  local state = open(key, now, a, b, c)
  local allowed, remaining, retry, reset, following = check(state, now, cost, a, b, c)
  if allowed and cost > 0 and not dry then charge(state, now, cost, a, b, c) end
  return string.format('=%.0f %.0f %.0f %.0f %.0f', allowed and 1 or 0, remaining, retry, reset, following), allowed
end
