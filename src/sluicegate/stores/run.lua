-- One plan in one run: first every check, then every charge or none.
--
-- KEYS  one for each check
-- ARGV  the time in microseconds, or '' for the server's clock; the mode: '1' charges, '0' is a peek, '2' charges the
--       checks that count refusals, because another server has refused the plan, '3' charges all; a tag;
--       then for each check: algorithm, how it counts, cost, three parameters; bans last, see bans.lua
--       how a check counts: '1' also when it is refused, else '0'; then, in shadow, the number of its rule: the
--       checks of a shadow rule are all charged or none
-- reply the tag, the time, then for each check: allowed, remaining, retry_after (-1: never), reset_after, next_after

local clock = ARGV[1] ~= '' and ARGV[1]
--@PROLOGUE

local charging, forced, allowed = ARGV[2] ~= '0', ARGV[2] == '3', ARGV[2] < '2'
local reply, states, refused = {ARGV[3] + 0, now, 0, 0, 0, 0, 0}, {}, nil -- refused: rules in shadow
local plain = #KEYS
--@BANS

for i = 1, plain do
  local key, at, to = KEYS[i], 6 * i - 2, 5 * i - 2
  local cost, a, b, c = ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0, ARGV[at + 5] + 0
  --@SEVERAL local open, check = algorithms[ARGV[at]]()
  local state, passed = open(key, now, a, b, c), nil
  passed, reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = check(state, now, cost, a, b, c)
  states[key], reply[to] = state, passed and 1 or 0
  if not passed and #ARGV[at + 1] > 1 then
    refused = refused or {}
    refused[ARGV[at + 1]] = true
  elseif not passed then
    allowed = false
  end
end
--@BANNED allowed = strike_bans() and allowed

for i = 1, plain do
  local key, at, to = KEYS[i], 6 * i - 2, 5 * i - 2
  local cost, a, b, c = ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0, ARGV[at + 5] + 0
  --@SEVERAL local open, check, charge = algorithms[ARGV[at]]()
  local how = ARGV[at + 1]
  local took = charging and allowed and not (refused and refused[how])
  local counts = charging and (forced or how >= '1') and reply[to + 2] ~= NEVER
  local charged = (took or counts) and cost > 0
  if charged then
    charge(states[key] or open(key, now, a, b, c), now, cost, a, b, c)
    states[key] = nil -- not valid after a charge; a plan may name one budget twice, although it should not
  end
  if not took then
    -- Nothing was charged, or only a rule that counts refusals: reply with the present numbers.
    local state, passed = states[key] or open(key, now, a, b, c), reply[to] == 1
    if charged then
      passed, reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = check(state, now, cost, a, b, c)
    end
    if passed then
      passed, reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = check(state, now, 0, a, b, c)
    end
  end
  if #how > 1 then
    -- A shadow rule refuses nothing. Its retry_after shows that it would have.
    if reply[to] == 1 then reply[to + 2] = 0 end
    reply[to] = 1
  end
end
return reply
