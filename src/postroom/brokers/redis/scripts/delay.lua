-- KEYS: the stream, the sorted set of what waits. ARGV: group, consumer, entry, number of the next
-- attempt, milliseconds to wait. Returns 1 where it was ours and waits, 0 where it was not ours,
-- -1 where the stream has it no more.
if not mine(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then return 0 end
if not entry(KEYS[1], ARGV[3]) then return -1 end
redis.call('ZADD', KEYS[2], milliseconds() + ARGV[5], ARGV[3])
redis.call('XCLAIM', KEYS[1], ARGV[1], LATER, 0, ARGV[3], 'RETRYCOUNT', ARGV[4], 'JUSTID')
return 1
