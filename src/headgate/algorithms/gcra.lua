-- gcra.py over a string "level:time". A state is the level now, and by how much it is ahead of the clock.

local function open(key, now, burst, unit, leak)
  local level, time = string.match(redis.call('GET', key) or '', '^(%d+):(%d+)$')
  if not level then return {key = key, level = 0, lag = 0} end
  local lag = time - now
  if lag <= 0 then return {key = key, level = math.max(0, level + lag * leak), lag = 0} end
  if lag > math.ceil(burst * unit / leak) then return {key = key, level = 0, lag = 0} end
  return {key = key, level = level + 0, lag = lag}
end

local function check(state, now, cost, burst, unit, leak)
  local full, level, lag, retry = burst * unit, state.level, state.lag, 0
  local total = level + cost * unit
  local allowed = total <= full or cost == 0
  if allowed then
    level = total
  else
    retry = cost <= burst and lag + math.ceil((total - full) / leak) or NEVER
  end
  if level == 0 then return allowed, burst, retry, lag, 0 end
  local free = level < full and math.floor((full - level) / unit) or 0
  local following = lag + math.ceil((level - full + (free + 1) * unit) / leak)
  return allowed, free, retry, lag + math.ceil(level / leak), following
end

local function charge(state, now, cost, burst, unit, leak)
  local level, lag = state.level, state.lag
  level = math.min(level + cost * unit, math.max(level, burst * unit))
  local value = string.format('%.0f:%.0f', level, now + lag)
  redis.call('SET', state.key, value, 'PX', expiry(lag + math.ceil(level / leak)))
end

--@REFUND

local function refund(state, now, cost, at, burst, unit, leak)
  local level, lag = state.level, state.lag
  local left = cost * unit - math.max(0, now - at) * leak
  if level == 0 or left <= 0 then return end
  if level <= left then return redis.call('DEL', state.key) end
  local value = string.format('%.0f:%.0f', level - left, now + lag)
  redis.call('SET', state.key, value, 'PX', expiry(lag + math.ceil((level - left) / leak)))
end
