-- sliding_log.py over a sorted set: score = moment, one member for each unit: "<moment>a0" to "a9", then "b10", …
-- The number distinguishes the units of one moment. The letter is the number's length, so that members of one score sort
-- by number.
-- A state is the number of units in the period and before it, the oldest and the newest moment, and the last member.

--@HIT
--@FUNCTIONS
local state = open(key, now, a, b, c)
local passed, remaining, retry, reset, following = check(state, now, cost, a, b, c)

--@WRITE
charge(state, now, cost, a, b, c)

--@TEXT
if passed and not all then passed, remaining, retry, reset, following = check(state, now, 0, a, b, c) end
text = string.format('=%.0f %.0f %.0f %.0f %.0f', passed and 1 or 0, remaining, retry, reset, following)

--@PLAN

local function moment(key, rank)
  return redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + 0
end

local function open(key, now, limit, window)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if not last[1] then return {key = key, used = 0} end
  local newest, gone = last[2] + 0, 0
  if newest + window <= now or newest - now > window then return {key = key, used = 0, stale = true} end
  local oldest = moment(key, 0)
  if oldest + window <= now then
    gone = redis.call('ZCOUNT', key, '-inf', now - window)
    oldest = moment(key, gone)
  end
  local used = redis.call('ZCARD', key) - gone
  return {key = key, used = used, gone = gone, oldest = oldest, newest = newest, last = last[1]}
end

-- The moment of the unit this many after the oldest in the period.
local function later(state, units)
  return units <= 0 and state.oldest or moment(state.key, state.gone + units)
end

local function check(state, now, cost, limit, window)
  local used, newest, stop = state.used, state.newest, window - now
  local left = limit - used - cost
  if used == 0 then
    if cost > limit then return false, limit, NEVER, 0, 0 end
    local wait = cost > 0 and window or 0
    return true, left, 0, wait, wait
  end
  local following = later(state, used - limit) + stop
  if left >= 0 or cost == 0 then
    if cost > 0 then newest = math.max(newest, now) end
    return true, math.max(0, left), 0, newest + stop, following
  end
  local retry = cost <= limit and later(state, -left - 1) + stop or NEVER
  return false, math.max(0, limit - used), retry, newest + stop, following
end

local function charge(state, now, cost, limit, window)
  local key, stamp, first = state.key, now, 0
  if state.used > 0 then
    local surplus = state.gone + math.max(0, state.used + cost - limit)
    if surplus > 0 then redis.call('ZREMRANGEBYRANK', key, 0, surplus - 1) end
    if state.newest >= now then
      stamp, first = state.newest, string.match(state.last, '%d+$') + 1
    end
  elseif state.stale then
    redis.call('DEL', key)
  end
  local score = string.format('%.0f', stamp)
  for unit = first, first + cost - 1 do
    local number = string.format('%.0f', unit)
    redis.call('ZADD', key, score, score .. string.char(96 + #number) .. number)
  end
  redis.call('PEXPIRE', key, expiry(stamp + window - now))
end

--@REFUND

local function refund(state, now, cost, at, limit, window)
  if state.used == 0 or at + window <= now then return end
  local key, score = state.key, string.format('%.0f', at)
  local units = math.min(cost, redis.call('ZCOUNT', key, score, score))
  if units == 0 then return end
  local before = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  redis.call('ZREMRANGEBYRANK', key, before, before + units - 1)
end
