-- sliding_window.py over a list [used, stamp, -count, stamp, -count, ...], the oldest stamp first; a count of 1 is left out.
-- Only the two ends are read, and in blocks as many of the oldest stamps as have to go.

-- The first stamp, from `index` on, for which `found(stamp, count)` holds: its index, itself, its count.
local function seek(key, index, found)
  local block, at, stamp = 4, nil, nil
  while true do
    local items = redis.call('LRANGE', key, index, index + block - 1)
    for i, item in ipairs(items) do
      local number = tonumber(item)
      local count = number < 0 and -number or 1
      if stamp and found(stamp, count) then return at, stamp, count end
      at, stamp = index + i - 1, number >= 0 and number or nil
    end
    if #items < block then
      if stamp and found(stamp, 1) then return at, stamp, 1 end
      return nil
    end
    index, block = index + block, 2 * block
  end
end

-- The stamp of the so-manyth unit, counted from the oldest, and how many units of that stamp are left from this one on.
local function seek_unit(key, index, units)
  local at, stamp, count = seek(key, index, function(_, count)
    units = units - count
    return units <= 0
  end)
  return at, stamp, count, 1 - units
end

local function push(key, stamp, count)
  redis.call('RPUSH', key, text(stamp))
  if count > 1 then redis.call('RPUSH', key, text(-count)) end
end

algorithms['sliding-window'] = {
  open = function(key)
    local head = redis.call('LRANGE', key, 0, 1)
    local tail = head[2] and redis.call('LRANGE', key, -2, -1) or {}
    local counted = tail[2] and tonumber(tail[2]) < 0
    return {
      key = key, held = head[1], used = tonumber(head[1]), oldest = tonumber(head[2]), first = 1,
      newest = tonumber(counted and tail[1] or tail[2]), count = counted and -tonumber(tail[2]) or 1, counted = counted,
    }
  end,

  check = function(state, now, cost, p)
    local limit, window, grain = p[1], p[2], p[3]
    local key, stop = state.key, window - now
    if state.newest and (state.newest + window <= now or state.newest - now > window + grain) then
      state.newest = nil
    end
    if not state.newest then
      if cost > limit then return false, limit, NEVER, 0, 0 end
      local wait = cost > 0 and ceil_div(now, grain) * grain + stop or 0
      return true, limit - cost, 0, wait, wait
    end
    if state.oldest + window <= now then
      local gone = 0
      state.first, state.oldest = seek(key, state.first, function(stamp, count)
        if stamp + window > now then return true end
        gone = gone + count
      end)
      state.used = state.used - gone
    end

    local function leaves(units)
      local _, stamp = seek_unit(key, state.first, units)
      return stamp + stop
    end
    local used = state.used
    local following = used <= limit and state.oldest + stop or leaves(used - limit + 1)
    local excess = used + cost - limit
    if excess <= 0 or cost == 0 then
      local newest = cost > 0 and math.max(state.newest, ceil_div(now, grain) * grain) or state.newest
      return true, math.max(0, -excess), 0, newest + stop, following
    end
    local retry = cost <= limit and leaves(excess) or NEVER
    return false, math.max(0, limit - used), retry, state.newest + stop, following
  end,

  charge = function(state, now, cost, p)
    local limit, window, grain = p[1], p[2], p[3]
    local key, stamp = state.key, ceil_div(now, grain) * grain
    if not state.newest then
      if state.held then redis.call('DEL', key) end
      redis.call('RPUSH', key, text(cost))
      state.held, state.used, state.oldest, state.newest = true, 0, stamp, -1
    elseif state.first > 1 then -- what stands before the first becomes the head, and is overwritten
      redis.call('LTRIM', key, state.first - 1, -1)
    end
    state.first, state.used = 1, state.used + cost
    if state.newest < stamp then
      push(key, stamp, cost)
      state.newest, state.count, state.counted = stamp, cost, cost > 1
    else
      state.count = state.count + cost
      if state.counted then redis.call('RPOP', key) end
      redis.call('RPUSH', key, text(-state.count))
      state.counted = true
    end
    if state.used > limit then
      local at, oldest, count, left = seek_unit(key, 1, state.used - limit + 1)
      if at > 1 then redis.call('LTRIM', key, at - 1, -1) end
      if left < count then redis.call('LSET', key, 2, text(-left)) end
      if oldest == state.newest then state.count = left end
      state.oldest, state.used = oldest, limit
    end
    redis.call('LSET', key, 0, text(state.used))
    redis.call('PEXPIRE', key, expiry(state.newest + window - now))
  end,
}
