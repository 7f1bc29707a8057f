-- KEYS: who leads the group. ARGV: consumer, milliseconds. Leads, or goes on leading, for so long;
-- with 0 milliseconds it ends. Returns 1 where it leads, else 0.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
