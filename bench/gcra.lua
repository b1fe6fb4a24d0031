-- The least that a GCRA needs on a server: ARGV is one interval and the whole burst, in microseconds. Returns whether
-- the hit is allowed, how many remain, and the microseconds to wait.
local time = redis.call('TIME')
local now, interval, burst = time[1] * 1000000 + time[2], ARGV[1] + 0, ARGV[2] + 0
local busy_until = math.max(now, (redis.call('GET', KEYS[1]) or 0) + 0) + interval
local ahead = busy_until - now
if ahead > burst then return {0, 0, ahead - burst} end
redis.call('SET', KEYS[1], busy_until, 'PX', math.ceil(ahead / 1000))
return {1, math.floor((burst - ahead) / interval), 0}
