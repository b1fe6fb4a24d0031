-- fixed_window.py over a string "start:used".

local function live(value, now, window)
  local start, used = string.match(value or '', '^(%d+):(%d+)$')
  start, used = tonumber(start), tonumber(used)
  if not start or now - start >= window or start - now > window then return now, 0 end
  return start, used
end

algorithms['fixed-window'] = {
  open = function(key) return {key = key, value = redis.call('GET', key)} end,

  check = function(state, now, cost, p)
    local limit, window = p[1], p[2]
    local start, used = live(state.value, now, window)
    local stop = start + window - now
    if used + cost <= limit or cost == 0 then
      used = used + cost
      local wait = used > 0 and stop or 0
      return true, math.max(limit - used, 0), 0, wait, wait
    end
    local wait = used > 0 and stop or 0
    return false, math.max(limit - used, 0), cost <= limit and stop or NEVER, wait, wait
  end,

  charge = function(state, now, cost, p)
    local limit, window = p[1], p[2]
    local start, used = live(state.value, now, window)
    state.value = text(start) .. ':' .. text(math.min(used + cost, math.max(used, limit)))
    redis.call('SET', state.key, state.value, 'PX', expiry(start + window - now))
  end,
}
