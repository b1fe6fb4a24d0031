-- fixed_window.py over a string "start:used".

--@HIT

-- A live window keeps its expiry, and the text of its start.
local function hit(key, now, cost, limit, window, _, dry, known)
  local value = known or redis.call('GET', key) or ''
  local start, used = string.match(value, '^(%d+):(%d+)$')
  local age = start and now - start
  if age and age < window and age >= -window then
    used = used + cost
    local passed = used <= limit
    if passed and cost > 0 and not dry then
      if used >= 1e14 then used = string.format('%.0f', used) end
      redis.call('SET', key, start .. ':' .. used, 'KEEPTTL')
    end
    return value, passed or cost == 0, value
  end
  if cost <= limit and cost > 0 and not dry then
    redis.call('SET', key, string.format('%.0f:%.0f', now, cost), 'PX', expiry(window))
  end
  return '', cost <= limit, value
end

--@PLAN

local function open(key, now, limit, window)
  local start, used = string.match(redis.call('GET', key) or '', '^(%d+):(%d+)$')
  if not start or now - start >= window or start - now > window then return {key = key, start = now, used = 0} end
  return {key = key, start = start + 0, used = used + 0}
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
  local value = string.format('%.0f:%.0f', state.start, used)
  redis.call('SET', state.key, value, 'PX', expiry(state.start + window - now))
end

--@REFUND

local function refund(state, now, cost, at, limit, window)
  local start, used = state.start, state.used
  if used == 0 or at < start or at >= start + window then return end
  if used <= cost then return redis.call('DEL', state.key) end
  redis.call('SET', state.key, string.format('%.0f:%.0f', start, used - cost), 'PX', expiry(start + window - now))
end
