-- The bans of a plan: its last checks. They are checked after all others, before anything is charged.
-- A part of run.lua if a plan has bans. The functions open, check and charge are those of ban.lua.
--
-- ARGV  for each: 'ban', of each check of the plan '1' if its refusal is a strike, strikes by hand, three parameters

while plain > 0 and ARGV[6 * plain - 2] == 'ban' do plain = plain - 1 end

function strike_bans()
  local free = true
  for i = plain + 1, #KEYS do
    local at, to = 6 * i - 2, 5 * i - 2
    local strikers, strikes, after, within = ARGV[at + 1], ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0
    local state = open(KEYS[i], now, within, ARGV[at + 5])
    local by_hand, passed = strikes > 0, check(state, now, after, within)
    for j = 1, passed and plain or 0 do
      if string.sub(strikers, j, j) == '1' and reply[5 * j - 2] == 0 then strikes = 1 end
    end
    if charging and strikes > 0 then charge(state, now, strikes, after, within, ARGV[at + 5]) end
    passed, reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = check(state, now, after, within)
    if by_hand then passed, reply[to + 2] = true, 0 end
    reply[to], free = passed and 1 or 0, free and passed
  end
  return free
end
