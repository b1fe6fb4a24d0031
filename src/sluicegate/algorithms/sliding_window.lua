-- sliding_window.py over a list [used, stamp, -count, stamp, -count, ...], the oldest stamp first. A count of 1 is left
-- out. A state holds the part of the list that was read, from its beginning; the index of the first stamp in the period;
-- and the newest stamp.

-- The key lives until a window after the end of the newest stamp's part, an eighth of a window. So a hit in the same part
-- sets no expiry.

local BLOCK = 12 -- items read at once: all of 10 stamps, and of most budgets

--@HIT
-- The reply has the used units, and the oldest and the newest stamp: all that an outcome needs, unless more than the limit
-- is used, or more than one unit is missing. If the hit passed and its stamp is the newest, the reply ends before that.
local limit, window, grain = a, b, c + 0
local stamp, block = now + -now % grain, limit > 10 and 6 or BLOCK
local items = call('LRANGE', key, '0', limit > 10 and '5' or '11')
local used, oldest, first, newest, last, count = items[1], items[2], 2, nil, nil, nil
if oldest then
  local size = #items
  newest = size == block and call('LINDEX', key, '-1') or items[size]
  last = newest + 0
  if last < 0 then
    count, newest = last, size == block and call('LINDEX', key, '-2') or items[size - 1]
    last = newest + 0
  end
end
if not oldest or last + window <= now or (last - now > window and last - now > window + grain) then
  if cost <= limit and cost > 0 then
    --@WRITE
    if oldest then call('DEL', key) end
    if cost > 1 then call('RPUSH', key, cost, stamp, -cost) else call('RPUSH', key, '1', stamp) end
    local part = (window + -window % 8) / 8
    local wait = stamp - stamp % part + part + window - now
    call('PEXPIRE', key, (wait - wait % 2000) / 1000 + slack)
    --@END
  end
  return HEAD --@ALSO cost <= limit
end
while oldest ~= newest and oldest + window <= now and first <= block - 3 do
  local gone = (items[first + 1] or 0) + 0
  if gone < 0 then used, first = used + gone, first + 2 else used, first = used - 1, first + 1 end
  oldest = items[first]
end
local total = used + cost
if (oldest == newest or oldest + window > now)
  and total > cost and total - cost <= limit and (total <= limit or cost <= 1) then
  if first > 2 then used = string.format('%.0f', used) end
  if total <= limit and cost > 0 then
    --@WRITE
    if first > 2 then call('LTRIM', key, first - 2, '-1') end -- the head may have any value: it is written next
    call('LSET', key, '0', total)
    if last >= stamp then -- its expiry is set already
      if count then call('LSET', key, '-1', count - cost) else call('RPUSH', key, -1 - cost) end
    else
      if cost > 1 then call('RPUSH', key, stamp, -cost) else call('RPUSH', key, stamp) end
      local part = (window + -window % 8) / 8
      local from = stamp - stamp % part
      if last < from then
        local wait = from + part + window - now
        call('PEXPIRE', key, (wait - wait % 2000) / 1000 + slack)
      end
    end
    if last <= stamp then
      return HEAD .. used .. ' ' .. oldest
    end
    --@END
  end
  return HEAD .. used .. ' ' .. oldest .. ' ' .. newest --@ALSO total <= limit
end
--@GENERAL

--@PLAN

-- The stamp at an index, its count, and the index of the next stamp.
local function entry(state, index)
  local items = state.items
  while state.more and index >= #items do
    local size = #items
    local block = redis.call('LRANGE', state.key, size, 2 * size - 1)
    for i, item in ipairs(block) do items[size + i] = item end
    state.more = #block == size
  end
  local count = (items[index + 1] or 0) + 0
  if count < 0 then return items[index] + 0, -count, index + 2 end
  return items[index] + 0, 1, index + 1
end

local function open(key, now, limit, window, grain)
  local items = redis.call('LRANGE', key, 0, BLOCK - 1)
  local size = #items
  if size < 2 then return {key = key, used = 0, newest = 0} end
  local more = size == BLOCK
  local newest, count = (more and redis.call('LINDEX', key, -1) or items[size]) + 0, nil
  if newest < 0 then
    count = -newest
    newest = (more and redis.call('LINDEX', key, -2) or items[size - 1]) + 0
  end
  if newest + window <= now or newest - now > window + grain then
    return {key = key, used = 0, newest = 0, stale = true}
  end
  local state = {
    key = key, items = items, more = more, first = 2,
    used = items[1] + 0, oldest = items[2] + 0, newest = newest, count = count,
  }
  while state.oldest + window <= now do
    local _, gone, following = entry(state, state.first)
    state.first, state.used, state.oldest = following, state.used - gone, entry(state, following)
  end
  return state
end

-- The stamp at whose expiry at least this many of the oldest units are free.
local function when(state, units)
  if units == 1 then return state.oldest end
  local index, stamp, count = state.first, nil, nil
  repeat
    stamp, count, index = entry(state, index)
    units = units - count
  until units <= 0
  return stamp
end

local function check(state, now, cost, limit, window, grain)
  local used, newest, stop = state.used, state.newest, window - now
  local stamp = now + -now % grain
  if used == 0 then
    if cost > limit then return false, limit, NEVER, 0, 0 end
    local wait = cost > 0 and stamp + stop or 0
    return true, limit - cost, 0, wait, wait
  end
  local following = (used <= limit and state.oldest or when(state, used - limit + 1)) + stop
  local left = limit - used - cost
  if left >= 0 or cost == 0 then
    if cost > 0 then newest = math.max(newest, stamp) end
    return true, math.max(0, left), 0, newest + stop, following
  end
  local retry = cost <= limit and when(state, -left) + stop or NEVER
  return false, math.max(0, limit - used), retry, newest + stop, following
end

-- Delete this many of the oldest units in the period, and all units before it. Some units stay.
local function cut(state, units)
  local index, stamp, count, following = state.first, entry(state, state.first)
  while units >= count do
    units, index = units - count, following
    stamp, count, following = entry(state, index)
  end
  if index > 2 then redis.call('LTRIM', state.key, index - 2, -1) end -- the head may have any value: it is written next
  if units > 0 then redis.call('LSET', state.key, 2, units - count) end
  if units > 0 and stamp == state.newest then state.count = count - units end
end

local function charge(state, now, cost, limit, window, grain)
  local key, stamp = state.key, math.max(state.newest, now + -now % grain)
  if state.used == 0 or cost == limit then -- nothing else stays
    if state.used > 0 or state.stale then redis.call('DEL', key) end
    redis.call('RPUSH', key, cost, stamp)
    if cost > 1 then redis.call('RPUSH', key, -cost) end
  else
    local surplus = math.max(0, state.used + cost - limit)
    if surplus > 0 or state.first > 2 then cut(state, surplus) end
    redis.call('LSET', key, 0, state.used + cost - surplus)
    if stamp == state.newest then -- its expiry is set already
      if state.count then redis.call('LSET', key, -1, -state.count - cost) else redis.call('RPUSH', key, -1 - cost) end
      return
    end
    redis.call('RPUSH', key, stamp)
    if cost > 1 then redis.call('RPUSH', key, -cost) end
  end
  local part = (window + -window % 8) / 8
  redis.call('PEXPIRE', key, expiry(stamp - stamp % part + part + window - now))
end

--@REFUND

local function refund(state, now, cost, at, limit, window, grain)
  if state.used == 0 or state.newest < at then return end
  local key, index, stamp, count, following = state.key, state.first, entry(state, state.first)
  while stamp < at do
    index = following
    stamp, count, following = entry(state, index)
  end
  if stamp > at + -at % grain then return end -- a later stamp belongs to other hits
  local units = math.min(cost, count)
  if state.used <= units then return redis.call('DEL', key) end
  if state.first > 2 then redis.call('LTRIM', key, state.first - 2, -1) end
  redis.call('LSET', key, 0, state.used - units)
  local place = index - state.first + 1
  if units < count then return redis.call('LSET', key, place + 1, units - count) end
  for item = place, place + following - index - 1 do redis.call('LSET', key, item, '') end
  redis.call('LREM', key, 0, '')
end
