-- sliding_counter.py over a string "start:current:previous", times in ticks.

--@HIT

-- A window that goes on keeps its expiry, and the text of its start and of the previous count.
local limit, window, tick = a, b, c + 0
local value, at = call('GET', key), math.floor(now / tick)
local start, current, previous = string.match(value or '', '^(%d+):(%d+):(%d+)$')
local age, kept = start and at - start, nil
if age and age < window and age >= -window then
  kept = true
elseif age and age >= window and age < 2 * window and current + 0 > 0 then
  start, current, previous = start + window, '0', current
else
  start, current, previous = at, '0', '0'
end
local total = current + cost
local free = (limit - total) * window - previous * (window - math.max(0, at - start))
local passed = free >= 0

--@WRITE
if kept then
  if total >= 1e14 then total = string.format('%.0f', total) end
  call('SET', key, start .. ':' .. total .. ':' .. previous, 'KEEPTTL')
else
  local wait = (start + 2 * window) * tick - now
  local fresh = string.format('%.0f:%.0f:%s', start, total, previous)
  call('SET', key, fresh, 'PX', (wait - wait % 2000) / 1000 + slack)
end

--@TEXT
text = (age and value or '')

--@PLAN

local function open(key, now, limit, window, tick)
  local start, current, previous = string.match(redis.call('GET', key) or '', '^(%d+):(%d+):(%d+)$')
  local at = math.floor(now / tick)
  local state = {key = key, at = at, start = at, current = 0, previous = 0}
  if not start then return state end
  local age = at - start
  if age >= -window and age < window then
    state.start, state.current, state.previous = start + 0, current + 0, previous + 0
  elseif age >= window and age < 2 * window and current + 0 > 0 then
    state.start, state.previous = start + window, current + 0
  end
  return state
end

-- Ticks from the window's start until the estimate is at most `room`, which it is not now.
local function wait(current, previous, room, window)
  if current <= room then return window - math.floor((room - current) * window / previous) end
  return 2 * window - math.floor(room * window / current)
end

local function check(state, now, cost, limit, window, tick)
  local current, previous, retry = state.current, state.previous, 0
  local free = (limit - current) * window -- all this is multiplied by the window
  if previous > 0 then free = free - previous * (window - math.max(0, state.at - state.start)) end
  local stop = state.start * tick - now
  local allowed = cost == 0 or cost * window <= free
  if allowed then
    current, free = current + cost, free - cost * window
  else
    retry = cost <= limit and stop + wait(current, previous, limit - cost, window) * tick or NEVER
  end
  local remaining = free > 0 and math.floor(free / window) or 0
  if free == limit * window then return allowed, remaining, retry, 0, 0 end
  local reset = stop + (current > 0 and 2 * window or window) * tick
  return allowed, remaining, retry, reset, stop + wait(current, previous, limit - remaining - 1, window) * tick
end

local function charge(state, now, cost, limit, window, tick)
  local start, current, previous = state.start, state.current, state.previous
  current = math.min(current + cost, math.max(current, limit))
  local value = string.format('%.0f:%.0f:%.0f', start, current, previous)
  redis.call('SET', state.key, value, 'PX', expiry((start + 2 * window) * tick - now))
end

--@REFUND

local function refund(state, now, cost, at, limit, window, tick)
  local start, current, previous = state.start, state.current, state.previous
  local into, before = math.floor(at / tick) - start, current + previous
  if into >= 0 and into < window then current = math.max(0, current - cost) end
  if into < 0 and into >= -window then previous = math.max(0, previous - cost) end
  if current + previous == before then return end
  if current + previous == 0 then return redis.call('DEL', state.key) end
  local value = string.format('%.0f:%.0f:%.0f', start, current, previous)
  redis.call('SET', state.key, value, 'PX', expiry((start + 2 * window) * tick - now))
end
