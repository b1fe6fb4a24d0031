-- sliding_log.py over a sorted set: score = moment, one member for each unit: "<moment>a0" to "a9", then "b10", …
-- The number tells the units of one moment apart; the letter, its length, puts members of one score in number's order.

local function moment(key, rank)
  return tonumber(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2])
end

algorithms['sliding-log'] = {
  open = function(key) return {key = key} end,

  check = function(state, now, cost, p)
    local limit, window, key = p[1], p[2], state.key
    local all = redis.call('ZCARD', key)
    local newest = all > 0 and moment(key, all - 1) or 0
    local used = 0
    if newest + window > now and newest - now <= window then
      used = redis.call('ZCOUNT', key, '(' .. text(now - window), '+inf')
    end
    state.used, state.gone, state.newest = used, all - used, newest

    local stop, excess = window - now, used + cost - limit
    local function leaves(units) return moment(key, state.gone + units) + stop end
    if excess <= 0 or cost == 0 then
      if used == 0 then
        local wait = cost > 0 and window or 0
        return true, limit - cost, 0, wait, wait
      end
      local last = cost > 0 and math.max(newest, now) or newest
      return true, math.max(0, -excess), 0, last + stop, leaves(math.max(0, used - limit))
    end
    if used == 0 then return false, limit, NEVER, 0, 0 end
    local retry = cost <= limit and leaves(excess - 1) or NEVER
    return false, math.max(0, limit - used), retry, newest + stop, leaves(math.max(0, used - limit))
  end,

  charge = function(state, now, cost, p)
    local limit, window, key = p[1], p[2], state.key
    local stamp = state.used > 0 and math.max(now, state.newest) or now
    local gone = state.gone + math.max(0, state.used + cost - limit)
    if gone > 0 then redis.call('ZREMRANGEBYRANK', key, 0, gone - 1) end
    local last, number = string.match(redis.call('ZRANGE', key, -1, -1)[1] or '', '^(%d+)%l(%d+)$')
    local first = last == text(stamp) and number + 1 or 0
    for unit = first, first + math.min(cost, limit) - 1 do
      redis.call('ZADD', key, text(stamp), text(stamp) .. string.char(96 + #text(unit)) .. text(unit))
    end
    state.used, state.gone, state.newest = math.min(state.used + cost, limit), 0, stamp
    redis.call('PEXPIRE', key, expiry(stamp + window - now))
  end,
}
