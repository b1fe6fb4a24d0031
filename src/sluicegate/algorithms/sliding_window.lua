-- sliding_window.py over a list of stamps, the oldest first, one for each unit. Above a limit of FEW the list has counts:
-- [-n, stamp, -count, stamp, -count, ...], where n is the number of the newest stamp's first unit. So a hit of one unit
-- nearly always writes one item. A list keeps its form when the limit falls, and gets counts when the limit rises.
-- A state holds the part of the list that was read, from its beginning; the index of the first stamp in the period; the
-- newest stamp; and whether there are counts.

-- The key lives until a window after the end of the newest stamp's part, an eighth of a window. So a hit in the same part
-- sets no expiry.

local FEW = 100 -- RESOLUTION of sliding_window.py

--@HIT
-- The reply has the used units, and the oldest and the newest stamp: all that an outcome needs, unless more than the limit
-- is used, or more than one unit is missing. If the hit passed and its stamp is the newest, the reply ends before that.
-- The used units are one byte, or the head and the count of the newest stamp, as text: a number costs more to format.
local limit, window, stamp, few = a, b, now, a <= FEW
local items, head, oldest, newest, count, tail, used, gone = nil, nil, nil, nil, nil, nil, nil, 0
if few then
  c = 1
  if limit <= 10 then
    items = call('LRANGE', key, '0', '11')
    head, used = items[1], #items
    newest = used < 12 and items[used]
  else
    head = call('LINDEX', key, '0')
    if head then newest, used = call('LINDEX', key, '-1'), call('LLEN', key) end
  end
  oldest = head
else
  c = window < 200 and 1 or (window - window % 100) / 100 -- the grain, as of `params` in sliding_window.py
  stamp = now + -now % c
  items = call('LRANGE', key, '0', '6')
  head, oldest = items[1], items[2]
  local first = head and head + 0
  if first and first < 0 then
    newest, count = oldest, items[3]
    if items[4] then
      local ends, size = items, #items
      if size == 7 then ends, size = call('LRANGE', key, '-2', '-1'), 2 end
      newest, count = ends[size - 1], ends[size]
    end
    tail = count + 0
    used = -1 - first - tail
  end
end
local last = newest and newest + 0
if last and last >= 0 and last + window > now and last - now <= window + c then
  if oldest ~= newest and oldest + window <= now then
    items = items or call('LRANGE', key, '0', '6')
    local step = count and 2 or 1
    repeat
      used = used - (count and -items[gone + 3] or 1)
      gone = gone + step
      oldest = items[gone + step] -- nil if more units have passed than were read
    until not oldest or oldest + window > now
  end
elseif not head or (last and last >= 0) then
  used, last, oldest = 0, -1, ''
else
  last = nil -- not known yet, or a count, because the limit was higher
end
local passed, general = used and used + cost <= limit, nil
if not last or not oldest or used > limit or (cost > 1 and (few or not passed)) then
  --@FUNCTIONS
  local state, remaining, retry, reset, following = open(key, now, a, b, c), nil, nil, nil, nil
  passed, remaining, retry, reset, following = check(state, now, cost, a, b, c)
  function general()
    if all and cost > 0 then
      charge(state, now, cost, a, b, c)
    elseif passed then
      passed, remaining, retry, reset, following = check(state, now, 0, a, b, c)
    end
    return string.format('=%.0f %.0f %.0f %.0f %.0f', passed and 1 or 0, remaining, retry, reset, following)
  end
elseif gone > 0 and not few then
  head = string.format('%.0f', -1 - tail - used)
end

--@WRITE
if general then
  -- The text is not known before the charge.
elseif few then
  if head and used == 0 then call('DEL', key) end
  if gone > 0 then call('LTRIM', key, gone, '-1') end
  call('RPUSH', key, last > stamp and newest or stamp)
elseif used == 0 then
  if head then call('DEL', key) end
  call('RPUSH', key, '-1', stamp, -cost)
else
  if gone > 0 then call('LTRIM', key, gone, '-1') end
  if last < stamp then
    call('LSET', key, '0', -1 - used)
    call('RPUSH', key, stamp, -cost)
  else
    if gone > 0 then call('LSET', key, '0', head) end
    call('LSET', key, '-1', tail - cost)
  end
end
if not general then
  if last < stamp then
    local part = (window + -window % 8) / 8
    local from = stamp - stamp % part
    if last < from then
      local wait = from + part + window - now
      call('PEXPIRE', key, (wait - wait % 2000) / 1000 + slack)
    end
  end
end

--@TEXT
if general then
  text = general()
elseif used == 0 then
  text = ''
else
  if last > stamp or not all or cost == 0 then oldest = oldest .. ' ' .. newest end
  if few then
    text = string.char(used + 128) .. oldest
  else
    text = head .. ' ' .. count .. ' ' .. oldest
  end
end

--@PLAN
local BLOCK = 12 -- the items that are read first; the rest of a longer list is read only if it is needed

-- The stamp at an index, its count, and the index of the next stamp.
local function entry(state, index)
  local items = state.items
  while state.more and index >= #items do
    local size = #items
    local block = redis.call('LRANGE', state.key, size, 2 * size - 1)
    for i, item in ipairs(block) do items[size + i] = item end
    state.more = #block == size
  end
  if state.count then return items[index] + 0, -items[index + 1], index + 2 end
  return items[index] + 0, 1, index + 1
end

local function open(key, now, limit, window, grain)
  local items = redis.call('LRANGE', key, 0, BLOCK - 1)
  local size = #items
  if size == 0 then return {key = key, used = 0, newest = 0} end
  local more, used, count, newest = size == BLOCK, size, nil, nil
  if items[1] + 0 < 0 then
    local ends = more and redis.call('LRANGE', key, -2, -1) or {items[size - 1], items[size]}
    newest, count = ends[1] + 0, -ends[2]
    used = count - 1 - items[1]
  else
    newest = (more and redis.call('LINDEX', key, -1) or items[size]) + 0
    if more then used = redis.call('LLEN', key) end
  end
  if newest + window <= now or newest - now > window + grain then
    return {key = key, used = 0, newest = 0, stale = true}
  end
  local begin = count and 2 or 1
  local state = {
    key = key, items = items, more = more, begin = begin, first = begin,
    used = used, oldest = items[begin] + 0, newest = newest, count = count,
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
  if index > state.begin then redis.call('LTRIM', state.key, index - state.begin, -1) end
  if units > 0 then redis.call('LSET', state.key, 2, units - count) end
  if units > 0 and stamp == state.newest then state.count = count - units end
end

local function charge(state, now, cost, limit, window, grain)
  local key, stamp, few = state.key, math.max(state.newest, now + -now % grain), limit <= FEW
  local used, count = math.min(state.used, limit - cost), state.count
  if used == 0 then -- nothing else stays
    if state.used > 0 or state.stale then redis.call('DEL', key) end
    count = nil
    if not few then redis.call('RPUSH', key, -1, stamp, -cost) end
  elseif not count and not few then -- the limit was lower
    local stamps = redis.call('LRANGE', key, state.first - 1, -1)
    redis.call('DEL', key)
    for _, each in ipairs(stamps) do charge(open(key, now, limit, window, grain), each + 0, 1, limit, window, 1) end
    return charge(open(key, now, limit, window, grain), now, cost, limit, window, grain)
  else
    if used < state.used or state.first > state.begin then cut(state, state.used - used) end
    count = state.count
  end
  if count then
    local same = stamp == state.newest
    redis.call('LSET', key, 0, -1 - used + (same and count or 0))
    if same then redis.call('LSET', key, -1, -count - cost) else redis.call('RPUSH', key, stamp, -cost) end
  elseif few then
    for _ = 1, cost do redis.call('RPUSH', key, stamp) end
  end
  local part = (window + -window % 8) / 8
  redis.call('PEXPIRE', key, expiry(stamp - stamp % part + part + window - now))
end

--@REFUND

local function refund(state, now, cost, at, limit, window, grain)
  if state.used == 0 or state.newest < at then return end
  local key, index, before, stamp, count, following = state.key, state.first, nil, entry(state, state.first)
  while stamp < at do
    index, before = following, count
    stamp, count, following = entry(state, index)
  end
  if stamp > at + -at % grain then return end -- a later stamp belongs to other hits
  if not state.count then return redis.call('LREM', key, cost, state.items[index]) end
  local units, place = math.min(cost, count), index - state.first + 1
  local used, last = state.used - units, state.count -- the count of the newest stamp that stays
  if used == 0 then return redis.call('DEL', key) end
  if stamp == state.newest then last = units < count and count - units or before end
  if state.first > 2 then redis.call('LTRIM', key, state.first - 2, -1) end -- the head may have any value: it is written next
  redis.call('LSET', key, 0, last - 1 - used)
  if units < count then return redis.call('LSET', key, place + 1, units - count) end
  for item = place, place + 1 do redis.call('LSET', key, item, '') end
  redis.call('LREM', key, 0, '')
end
