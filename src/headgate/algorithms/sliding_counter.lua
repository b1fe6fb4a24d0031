-- sliding_counter.py over a string "start:current:previous", times in ticks.

local function live(value, at, window)
  local start, current, previous = string.match(value or '', '^(%d+):(%d+):(%d+)$')
  start, current, previous = tonumber(start), tonumber(current), tonumber(previous)
  if not start or start - at > window then return {at, 0, 0} end
  if at - start < window then return {start, current, previous} end
  if at - start < 2 * window and current > 0 then return {start + window, 0, current} end
  return {at, 0, 0}
end

local function weight(counts, at, window)
  return counts[3] * (window - math.max(0, at - counts[1])) + counts[2] * window
end

local function wait(counts, room, window)
  if counts[2] <= room then return window - floor_div((room - counts[2]) * window, counts[3]) end
  return 2 * window - floor_div(room * window, counts[2])
end

algorithms['sliding-counter'] = {
  open = function(key) return {key = key, value = redis.call('GET', key)} end,

  check = function(state, now, cost, p)
    local limit, window, tick = p[1], p[2], p[3]
    local at = floor_div(now, tick)
    local counts = live(state.value, at, window)
    local allowed = cost == 0
      or (cost <= limit and weight(counts, at, window) + cost * window <= limit * window)
    local after = {counts[1], counts[2] + (allowed and cost or 0), counts[3]}
    local used = weight(after, at, window)
    local remaining = floor_div(math.max(0, limit * window - used), window)
    local start = counts[1] * tick - now

    local retry = 0
    if not allowed then
      retry = cost <= limit and start + wait(counts, limit - cost, window) * tick or NEVER
    end
    if used == 0 then return allowed, remaining, retry, 0, 0 end
    local reset = start + (after[2] > 0 and 2 * window or window) * tick
    return allowed, remaining, retry, reset, start + wait(after, limit - remaining - 1, window) * tick
  end,

  charge = function(state, now, cost, p)
    local limit, window, tick = p[1], p[2], p[3]
    local counts = live(state.value, floor_div(now, tick), window)
    local current = math.min(counts[2] + cost, math.max(counts[2], limit))
    state.value = text(counts[1]) .. ':' .. text(current) .. ':' .. text(counts[3])
    redis.call('SET', state.key, state.value, 'PX', expiry((counts[1] + 2 * window) * tick - now))
  end,
}
