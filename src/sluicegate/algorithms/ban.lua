-- ban.py over a string "strikes:since:ends:level". The third parameter is text: the time for which a level is kept,
-- and the length of each next ban.

local function open(key, now, within, words)
  local strikes, since, ends, level = string.match(redis.call('GET', key) or '', '^(%d+):(%d+):(%d+):(%d+)$')
  local state = {key = key, strikes = 0, since = 0, ends = 0, level = 0, remembered = string.match(words, '^%d+') + 0}
  if not strikes then return state end
  local age = now - since
  if age >= -within and age < within then state.strikes, state.since = strikes + 0, since + 0 end
  state.ends = ends + 0
  if now < state.ends + state.remembered then state.level = level + 0 end
  return state
end

local function check(state, now, after, within)
  local left, following = math.max(0, state.ends - now), 0
  if left > 0 then
    following = left
  elseif state.strikes > 0 then
    following = state.since + within - now
  end
  local reset = following
  if state.level > 0 then reset = math.max(reset, state.ends + state.remembered - now) end
  return left == 0, left > 0 and 0 or math.max(0, after - state.strikes), left, reset, following
end

local function charge(state, now, cost, after, within, words)
  if state.strikes == 0 then state.since = now end
  state.strikes = state.strikes + cost
  if state.strikes >= after then
    local lengths = {}
    for length in string.gmatch(words, '%d+') do lengths[#lengths + 1] = length + 0 end
    local top = #lengths - 2 -- the first is no length
    state.ends = now + lengths[math.min(state.level, top) + 2]
    state.strikes, state.level = 0, math.min(state.level + 1, top)
  end
  local _, _, _, reset = check(state, now, after, within)
  local value = string.format('%.0f:%.0f:%.0f:%.0f', state.strikes, state.since, state.ends, state.level)
  redis.call('SET', state.key, value, 'PX', expiry(reset))
end
