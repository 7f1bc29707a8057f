-- KEYS: the stream. ARGV: group, milliseconds. Forgets the names of consumers that hold nothing
-- and were silent for so long. Returns how many.
local count = 0
for _, one in ipairs(consumers(KEYS[1], ARGV[1])) do
  if one.pending == 0 and one.idle > tonumber(ARGV[2])
      and one.name ~= GIVEN_BACK and one.name ~= LATER then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], one.name)
    count = count + 1
  end
end
return count
