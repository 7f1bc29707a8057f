-- KEYS: the stream, the sorted set of what waits, the stream of dead letters. ARGV: group,
-- consumer, milliseconds after which a silent consumer is dead, how many, topic, whether to look
-- for dead consumers. Takes what is due, what was given back, and what dead consumers hold.
-- Returns the entries, each with its number of attempts and its fields; the milliseconds until
-- the next one is due, or -1; and how many were trimmed.
local stream, waiting, graves = KEYS[1], KEYS[2], KEYS[3]
local group, me, lease, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now, found, trimmed = milliseconds(), {}, 0

local function take(row)
  local fields = entry(stream, row[1])
  if fields then
    hand(stream, group, row[1], me)
    found[#found + 1] = {row[1], row[4], fields}
  else
    redis.call('XACK', stream, group, row[1])
    redis.call('XADD', graves, '*', 'postroom-topic', ARGV[5], 'postroom-entry', row[1],
      'postroom-attempts', row[4] - 1, 'postroom-died-at', string.format('%.0f', now * 1000),
      'postroom-reason', 'trimmed or deleted from its stream before it was done')
    trimmed = trimmed + 1
  end
  redis.call('ZREM', waiting, row[1])
end


for _, id in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'LIMIT', 0, limit)) do
  local row = pending(stream, group, id)
  if row and row[2] == LATER then take(row) else redis.call('ZREM', waiting, id) end
end
if limit > #found then
  for _, row in ipairs(redis.call('XPENDING', stream, group, '-', '+', limit - #found, GIVEN_BACK)) do
    take(row)
  end
end
if ARGV[6] == '1' then
  for _, one in ipairs(consumers(stream, group)) do
    if one.name == LATER then
      -- Without a time when they are due (the sorted set was deleted) they are due now.
      if one.pending > redis.call('ZCARD', waiting) then
        for _, row in ipairs(redis.call('XPENDING', stream, group, '-', '+', one.pending, LATER)) do
          if not redis.call('ZSCORE', waiting, row[1]) then hand(stream, group, row[1], GIVEN_BACK) end
        end
      end
    elseif one.name ~= me and one.name ~= GIVEN_BACK and one.pending > 0 and limit > #found then
      for _, row in ipairs(redis.call('XPENDING', stream, group, 'IDLE', lease, '-', '+',
          limit - #found, one.name)) do
        take(row)
      end
    end
  end
end
local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
local due = first[2] and math.max(0, tonumber(first[2]) - now) or -1
return {found, due, trimmed}
