-- Turns a reservation into an event.
-- KEYS: events, reservations; ARGV: now in ms, period in ms, id
if redis.call('ZREM', KEYS[2], ARGV[3]) == 0 then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[3])
redis.call('EXPIRE', KEYS[1], math.ceil(ARGV[2] / 1000))
return 1
