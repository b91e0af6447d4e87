-- The sliding window that everybody copies, at its leanest: the client does the arithmetic.
-- KEYS[1], ARGV: now in ms, now - period, limit, a unique member, period in seconds
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[2])
local count = redis.call('ZCARD', KEYS[1])
if count >= tonumber(ARGV[3]) then
  return {1, 0}
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return {0, ARGV[3] - count - 1}
