-- GCRA as the Lua limiters do it: the theoretical arrival time in a string, in seconds.
-- KEYS[1], ARGV: burst, count, period in seconds, quantity
local burst = tonumber(ARGV[1])
local interval = tonumber(ARGV[3]) / tonumber(ARGV[2])
local increment = interval * tonumber(ARGV[4])

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

local tat = tonumber(redis.call('GET', KEYS[1]) or now)
tat = math.max(tat, now)

local new_tat = tat + increment
local room = now - (new_tat - interval * burst)
if room < 0 then
  return {1, burst, 0, tostring(-room), tostring(tat - now)}
end

local reset_after = new_tat - now
redis.call('SET', KEYS[1], new_tat, 'EX', math.ceil(reset_after))
return {0, burst, math.floor(room / interval), '-1', tostring(reset_after)}
