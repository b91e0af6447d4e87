-- A reservation in a sliding window, in the manner of python's redis-limiter; the client does the arithmetic.
-- KEYS: events, reservations; ARGV: now in ms, now - period, limit, now + lease, id
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, ARGV[1])
local used = redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[2])
if used >= tonumber(ARGV[3]) then
  return {1, 0}
end
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[5])
return {0, ARGV[3] - used - 1}
