-- KEYS: the stream of dead letters, the stream. ARGV: dead letter, fields. Moves it; returns 1, or
-- 0 where somebody else was faster.
if not entry(KEYS[1], ARGV[1]) then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 2))
redis.call('XDEL', KEYS[1], ARGV[1])
return 1
