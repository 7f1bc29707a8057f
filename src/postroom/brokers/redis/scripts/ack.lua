-- KEYS: the stream. ARGV: group, consumer, whether to delete, entries.
-- Returns 1 for each that was ours and is done, 0 for the others.
local answers = {}
for at = 4, #ARGV do
  local ours = mine(KEYS[1], ARGV[1], ARGV[2], ARGV[at])
  if ours then done(KEYS[1], ARGV[1], ARGV[at], ARGV[3]) end
  answers[#answers + 1] = ours and 1 or 0
end
return answers
