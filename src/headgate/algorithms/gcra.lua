-- gcra.py over a string "level:time".

local function leaked(value, now, p)
  local level, time = string.match(value or '', '^(%d+):(%d+)$')
  level, time = tonumber(level), tonumber(time)
  if not level then return 0, 0 end
  if time <= now then return math.max(0, level - (now - time) * p[3]), 0 end
  if time - now > ceil_div(p[1] * p[2], p[3]) then return 0, 0 end
  return level, time - now
end

local function free(level, p)
  local full = p[1] * p[2]
  return level < full and floor_div(full - level, p[2]) or 0
end

local function following(level, lag, p)
  if level == 0 then return 0 end
  return lag + ceil_div(level - p[1] * p[2] + (free(level, p) + 1) * p[2], p[3])
end

algorithms['gcra'] = {
  open = function(key) return {key = key, value = redis.call('GET', key)} end,

  check = function(state, now, cost, p)
    local burst, unit, leak = p[1], p[2], p[3]
    local level, lag = leaked(state.value, now, p)
    local total, retry = level, NEVER
    if cost <= burst or cost == 0 then
      total = level + cost * unit
      if total <= burst * unit or cost == 0 then
        return true, free(total, p), 0, lag + ceil_div(total, leak), following(total, lag, p)
      end
      retry = lag + ceil_div(total - burst * unit, leak)
    end
    return false, free(level, p), retry, lag + ceil_div(level, leak), following(level, lag, p)
  end,

  charge = function(state, now, cost, p)
    local burst, unit, leak = p[1], p[2], p[3]
    local level, lag = leaked(state.value, now, p)
    level = math.min(level + cost * unit, math.max(level, burst * unit))
    state.value = text(level) .. ':' .. text(now + lag)
    redis.call('SET', state.key, state.value, 'PX', expiry(lag + ceil_div(level, leak)))
  end,
}
