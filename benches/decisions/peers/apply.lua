-- Turns a reservation into an event.
-- KEYS: events, reservations; ARGV: now in ms, id, period in seconds
if redis.call('ZREM', KEYS[2], ARGV[2]) == 0 then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
