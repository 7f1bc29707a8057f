-- KEYS: the stream. ARGV: group, consumer. Gives everything back that the consumer holds, and
-- forgets its name, where nothing is left under it. Returns how many were given back.
local count, after = 0, '-'
while true do
  local rows = redis.call('XPENDING', KEYS[1], ARGV[1], after, '+', 100, ARGV[2])
  if #rows == 0 then break end
  for _, row in ipairs(rows) do
    after = '(' .. row[1]
    if entry(KEYS[1], row[1]) then
      hand(KEYS[1], ARGV[1], row[1], GIVEN_BACK)
      count = count + 1
    end
  end
end
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
return count
