-- One plan in one run: every check first, then every charge or none.
--
-- KEYS  one for each check
-- ARGV  the time in microseconds, or '' for the server's own; '1' to charge, '0' to look only;
--       then for each check: algorithm, '1' if refusals count, cost, three parameters
-- reply for each check: allowed, remaining, retry_after (-1: never), reset_after, next_after
--
-- Numbers are doubles: everything here stays below 2^53, is divided only by the two functions below, and
-- is written by text(), because tostring() keeps fourteen digits. The algorithms come between.

local NEVER = -1
local algorithms = {}
local slack = 0

local function floor_div(a, b) return (a - math.fmod(a, b)) / b end
local function ceil_div(a, b) return floor_div(a, b) + (math.fmod(a, b) > 0 and 1 or 0) end
local function text(number) return string.format('%.0f', number) end
-- Milliseconds that outlast so many microseconds, though the server may round its own clock down.
local function expiry(wait) return text(floor_div(wait, 1000) + 2 + slack) end

--@ALGORITHMS

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
else
  slack = 3600000 -- a clock moved by hand stands still while the server's runs
end

local calls, opened, allowed = {}, {}, true
for i, key in ipairs(KEYS) do
  local at = 3 + (i - 1) * 6
  local algorithm = algorithms[ARGV[at]]
  local p = {tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])}
  local cost = tonumber(ARGV[at + 2])
  opened[key] = opened[key] or algorithm.open(key) -- one state, should a plan name one budget twice
  local call = {algorithm = algorithm, cost = cost, p = p, counted = ARGV[at + 1] == '1', state = opened[key]}
  call.outcome = {algorithm.check(call.state, now, cost, p)}
  allowed = allowed and call.outcome[1]
  calls[i] = call
end

local charging = ARGV[2] == '1'
for _, call in ipairs(calls) do
  local passed = call.outcome[1]
  local counts = call.counted and call.outcome[3] ~= NEVER
  if charging and call.cost > 0 and (allowed or counts) then
    call.algorithm.charge(call.state, now, call.cost, call.p)
  end
  if not (charging and allowed) then
    -- Nothing was taken, or only by a rule that counts refusals: say how it stands now.
    if charging and counts then call.outcome = {call.algorithm.check(call.state, now, call.cost, call.p)} end
    if call.outcome[1] then call.outcome = {call.algorithm.check(call.state, now, 0, call.p)} end
    call.outcome[1] = passed
  end
end

local reply = {}
for _, call in ipairs(calls) do
  local outcome = call.outcome
  reply[#reply + 1] = outcome[1] and 1 or 0
  for i = 2, 5 do reply[#reply + 1] = outcome[i] end
end
return reply
