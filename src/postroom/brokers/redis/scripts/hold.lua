-- KEYS: the stream. ARGV: group, consumer, entries. Shows that their holder lives: the time since
-- they were taken begins anew. Returns those that are not ours any more.
local lost = {}
for at = 3, #ARGV do
  if not mine(KEYS[1], ARGV[1], ARGV[2], ARGV[at]) then
    lost[#lost + 1] = ARGV[at]
  elseif entry(KEYS[1], ARGV[at]) then
    hand(KEYS[1], ARGV[1], ARGV[at], ARGV[2])
  end
end
return lost
