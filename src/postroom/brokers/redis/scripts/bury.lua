-- KEYS: the stream, the stream of dead letters. ARGV: group, consumer, whether to delete, entry,
-- fields of the dead letter. Returns 1 where it was ours and is buried, else 0.
if not mine(KEYS[1], ARGV[1], ARGV[2], ARGV[4]) then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 5))
done(KEYS[1], ARGV[1], ARGV[4], ARGV[3])
return 1
