-- calendar.py over a string of digits: the used units, and in the last 16 the end of the window. The parameters are the
-- limit, the beginning of a window in microseconds, and its length and that of the next one in seconds, in one number.

--@HIT
--@FUNCTIONS
local state = open(key, now, a, b, c + 0)
local passed, remaining, retry, reset, following = check(state, now, cost, a, b, c)

--@WRITE
charge(state, now, cost, a)

--@TEXT
if passed and not all then passed, remaining, retry, reset, following = check(state, now, 0, a) end
text = string.format('=%.0f %.0f %.0f %.0f %.0f', passed and 1 or 0, remaining, retry, reset, following)

--@PLAN

local function window(time, start, lengths)
  local second = lengths % 33554432
  local length = (lengths - second) / 33554432 * 1000000
  if time >= start + length then start, length = start + length, second * 1000000 end
  start = start + math.floor((time - start) / length) * length
  return start, start + length
end

local function open(key, now, limit, start, lengths)
  local value, from, to = redis.call('GET', key) or '', window(now, start, lengths)
  local ends, used = tonumber(string.sub(value, -16)), tonumber(string.sub(value, 1, -17))
  if ends and used and used > 0 then
    local kept, before, after = ends, window(ends, start, lengths)
    if 2 * (ends - before) > after - before then ends = after end
    if now < ends and ends <= now + 3 * (to - from) then
      return {key = key, used = used, kept = kept, ends = ends, length = to - from}
    end
  end
  return {key = key, used = 0, kept = to, ends = to, length = to - from}
end

local function check(state, now, cost, limit)
  local used, wait = state.used, state.ends - now
  local allowed = used + cost <= limit or cost == 0
  local retry = allowed and 0 or cost <= limit and wait or NEVER
  if allowed then used = used + cost end
  if used == 0 then wait = 0 end
  return allowed, math.max(0, limit - used), retry, wait, wait
end

-- A key lives longer than its window, for processes whose window ends later: by a day, or by the window if that is less.
local function keep(state, now, used)
  local wait = state.ends - now + math.min(state.length, 86400000000)
  redis.call('SET', state.key, string.format('%.0f%016.0f', used, state.kept), 'PX', expiry(wait))
end

local function charge(state, now, cost, limit)
  keep(state, now, math.min(state.used + cost, math.max(state.used, limit)))
end

--@REFUND

local function refund(state, now, cost, at, limit, start, lengths)
  if state.used == 0 or at < window(state.ends - 1, start, lengths) or at >= state.ends then return end
  if state.used <= cost then return redis.call('DEL', state.key) end
  keep(state, now, state.used - cost)
end
