-- fixed_window.py over a string of digits: the used units, and in the last 16 the start of the window. So INCRBY adds units,
-- and keeps the expiry, up to what a signed integer of 64 bits holds.

--@HIT

local limit, window, start, used = a, b, nil, nil
local value = call('GET', key)
if value then start, used = tonumber(string.sub(value, -16)), tonumber(string.sub(value, 1, -17)) end
if start and used and used > 0 and now - start < window and start - now <= window then
  used = used + cost
  local passed = used <= limit
  if passed and cost > 0 then
    --@WRITE
    if used < 900 then
      redis.call('INCRBY', key, cost .. '0000000000000000')
    else
      call('SET', key, string.format('%.0f', used) .. string.sub(value, -16), 'KEEPTTL')
    end
    --@END
  end
  return HEAD .. value --@ALSO passed or cost == 0
end
if cost <= limit and cost > 0 then
  --@WRITE
  call('SET', key, string.format('%.0f%016.0f', cost, now), 'PX', (window - window % 2000) / 1000 + slack)
  --@END
end
return HEAD --@ALSO cost <= limit

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
