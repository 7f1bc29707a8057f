-- KEYS: the stream, the sorted set of what waits, the stream of dead letters. ARGV: group,
-- consumer, milliseconds after which a silent consumer is dead, how many, topic, whether to look
-- for dead consumers. Takes what is due, what was given back, and what dead consumers hold.
-- Returns the entries, each with its number of attempts and its fields, and the milliseconds until
-- the next one is due, or -1.
local stream, waiting, graves = KEYS[1], KEYS[2], KEYS[3]
local group, me, lease, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now, found = milliseconds(), {}

local function mourn(row)
  redis.call('XACK', stream, group, row[1])
  redis.call('ZREM', waiting, row[1])
  redis.call('XADD', graves, '*', 'postroom-topic', ARGV[5], 'postroom-entry', row[1],
    'postroom-attempts', row[4] - 1, 'postroom-died-at', string.format('%.0f', now * 1000),
    'postroom-reason', 'trimmed or deleted from its stream before it was done')
end

local function take(row)
  local fields = entry(stream, row[1])
  if not fields then return mourn(row) end
  hand(stream, group, row[1], me)
  redis.call('ZREM', waiting, row[1])
  found[#found + 1] = {row[1], row[4], fields}
end

local function give_back(row)
  if entry(stream, row[1]) then hand(stream, group, row[1], GIVEN_BACK) else mourn(row) end
end

-- First everything that nobody has goes to one place, so that the oldest is taken first.
if ARGV[6] == '1' then
  for _, one in ipairs(consumers(stream, group)) do
    if one.name == LATER then
      -- Without a time when they are due (the sorted set was deleted) they are due now.
      if one.pending > redis.call('ZCARD', waiting) then
        for _, row in ipairs(redis.call('XPENDING', stream, group, '-', '+', one.pending, LATER)) do
          if not redis.call('ZSCORE', waiting, row[1]) then give_back(row) end
        end
      end
    elseif one.name ~= me and one.name ~= GIVEN_BACK and one.pending > 0 then
      for _, row in ipairs(redis.call('XPENDING', stream, group, 'IDLE', lease, '-', '+',
          math.min(one.pending, 10000), one.name)) do
        give_back(row)
      end
    end
  end
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
local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
return {found, first[2] and math.max(0, tonumber(first[2]) - now) or -1}
