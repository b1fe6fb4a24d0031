-- fixed_window.py over a string of digits: the used units, and in the last 16 the start of the window. So INCRBY adds units,
-- and keeps the expiry, up to what a signed integer of 64 bits holds.

--@HIT

local window, value, used, start, left = b, call('GET', key), 0, nil, nil
if value then
  -- As a double the value has the used units, and the start within a millisecond: nearly always that is enough.
  local number = tonumber(value)
  if number and number < 9e18 then
    start = number % 1e16
    used = (number - start) / 1e16
    left = start + window - now
  end
  if not left or used == 0 or left < 1000 or left > 2 * window - 1000 then
    start, used = tonumber(string.sub(value, -16)), tonumber(string.sub(value, 1, -17))
    left = start and used and used > 0 and start - now <= window and start + window - now or 0
  end
  if left <= 0 then value, used = nil, 0 end
end
local total = used + cost
local passed = total <= a

--@WRITE
if not value then
  call('SET', key, string.format('%.0f%016.0f', cost, now), 'PX', (window - window % 2000) / 1000 + slack)
elseif total < 900 then
  call('INCRBY', key, cost == 1 and '10000000000000000' or cost .. '0000000000000000')
else
  call('SET', key, string.format('%.0f', total) .. string.sub(value, -16), 'KEEPTTL')
end

--@TEXT
text = (value or '')

--@PLAN

local function open(key, now, limit, window)
  local value = redis.call('GET', key) or ''
  local start, used = tonumber(string.sub(value, -16)), tonumber(string.sub(value, 1, -17))
  if start and used and used > 0 and now - start < window and start - now <= window then
    return {key = key, start = start, used = used}
  end
  return {key = key, start = now, used = 0}
end

local function check(state, now, cost, limit, window)
  local used, wait = state.used, state.start + window - now
  local allowed = used + cost <= limit or cost == 0
  local retry = allowed and 0 or cost <= limit and wait or NEVER
  if allowed then used = used + cost end
  if used == 0 then wait = 0 end
  return allowed, math.max(0, limit - used), retry, wait, wait
end

local function charge(state, now, cost, limit, window)
  local used = math.min(state.used + cost, math.max(state.used, limit))
  local value = string.format('%.0f%016.0f', used, state.start)
  redis.call('SET', state.key, value, 'PX', expiry(state.start + window - now))
end

--@REFUND

local function refund(state, now, cost, at, limit, window)
  local start, used = state.start, state.used
  if used == 0 or at < start or at >= start + window then return end
  if used <= cost then return redis.call('DEL', state.key) end
  redis.call('SET', state.key, string.format('%.0f%016.0f', used - cost, start), 'PX', expiry(start + window - now))
end
