-- Three limits of the module in one script, which stops at the first that denies: what was taken until then is lost.
-- KEYS: two buckets and a calendar window; ARGV: max_burst, count, period, the same again, limit, period
local reply = redis.call('RL.THROTTLE', KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if reply[1] == 1 then
  return reply
end
reply = redis.call('RL.THROTTLE', KEYS[2], ARGV[4], ARGV[5], ARGV[6])
if reply[1] == 1 then
  return reply
end
return redis.call('RL.WINDOW', KEYS[3], ARGV[7], ARGV[8], 'FIXED')
