-- A place in a semaphore whose holders may die; it is given back by ZREM. The client does the arithmetic.
-- KEYS[1], ARGV: now in ms, limit, now + lease, id
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1])
local held = redis.call('ZCARD', KEYS[1])
if held >= tonumber(ARGV[2]) then
  return {1, 0}
end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4])
return {0, ARGV[2] - held - 1}
