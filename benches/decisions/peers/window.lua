-- The sliding window that everybody copies.
-- KEYS[1], ARGV: now in ms, period in ms, limit, a unique member
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1] - ARGV[2])
local count = redis.call('ZCARD', KEYS[1])
if count >= tonumber(ARGV[3]) then
  return {1, 0}
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('EXPIRE', KEYS[1], math.ceil(ARGV[2] / 1000))
return {0, ARGV[3] - count - 1}
