-- Plans of one check each, of one rule and at cost 1, in one run. Each is charged or refused separately.
--
-- KEYS  one for each plan
-- ARGV  a tag; three parameters, of which the last may be missing; then the time in microseconds, unless it is that of the
--       server's clock
-- reply the beginning of every reply of hit.lua, then its end for each plan; an error for a plan that failed

local tag, a, b, c, clock = unpack(ARGV)
--@PROLOGUE
--@HEADS

local function hit(key)
  local cost, all = 1, nil
  --@HIT
  all = passed
  if all then
    --@WRITE
  end
  --@TEXT
end

local reply = {HEAD}
a, b = a + 0, b + 0
for i, key in ipairs(KEYS) do
  local done, answer = pcall(hit, key)
  reply[i + 1] = (done or type(answer) == 'table') and answer or {err = answer}
end
return reply
