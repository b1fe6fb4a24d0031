-- gcra.py over a string of 11 bytes: the time in seven and the level in four, each the lowest first. A level of 2^32 or
-- more has its three other bytes at the end. A state is the level now, and the time by which it is ahead of the clock.
-- Any other string counts as no state: text would be a time centuries ahead.

local function read(value, now, burst, unit, leak)
  local t0, t1, t2, t3, t4, t5, t6, a, b, c, d, e, f, g = string.byte(value or '', 1, 14)
  if not d then return 0, 0 end
  local lag = (((((t6 * 256 + t5) * 256 + t4) * 256 + t3) * 256 + t2) * 256 + t1) * 256 + t0 - now
  local level = ((d * 256 + c) * 256 + b) * 256 + a
  if g then level = level + ((g * 256 + f) * 256 + e) * 2^32 end
  if lag <= 0 then return math.max(0, level + lag * leak), 0 end
  if lag > math.ceil(burst * unit / leak) then return 0, 0 end
  return level, lag
end

-- The four lowest bytes of a number, the lowest first, and what is above them.
local function bytes(number)
  local a, b, c, d = number % 2^8, number % 2^16, number % 2^24, number % 2^32
  return a, (b - a) / 2^8, (c - b) / 2^16, (d - c) / 2^24, (number - d) / 2^32
end

local function keep(key, now, level, lag, leak)
  local wait = lag + math.ceil(level / leak)
  local t0, t1, t2, t3, above = bytes(now + lag)
  local t4, t5, t6 = bytes(above)
  local a, b, c, d, more = bytes(level)
  local value = string.char(t0, t1, t2, t3, t4, t5, t6, a, b, c, d)
  if more > 0 then
    local e, f, g = bytes(more)
    value = value .. string.char(e, f, g)
  end
  redis.call('SET', key, value, 'PX', (wait - wait % 2000) / 1000 + slack)
end

--@HIT

local burst, unit, leak = a, b, c + 0
local value = call('GET', key)
local level, lag = read(value, now, burst, unit, leak)
level = level + cost * unit
local passed = level <= burst * unit

--@WRITE
keep(key, now, level, lag, leak)

--@TEXT
text = (value or '')

--@PLAN

local function open(key, now, burst, unit, leak)
  local level, lag = read(redis.call('GET', key), now, burst, unit, leak)
  return {key = key, level = level, lag = lag}
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
  local level = state.level
  keep(state.key, now, math.min(level + cost * unit, math.max(level, burst * unit)), state.lag, leak)
end

--@REFUND

local function refund(state, now, cost, at, burst, unit, leak)
  local left = cost * unit - math.max(0, now - at) * leak
  if state.level == 0 or left <= 0 then return end
  if state.level <= left then return redis.call('DEL', state.key) end
  keep(state.key, now, state.level - left, state.lag, leak)
end
