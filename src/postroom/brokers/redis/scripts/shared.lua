-- What all scripts share. Only who holds an entry may say what becomes of it.

local GIVEN_BACK, LATER = 'postroom:given-back', 'postroom:later'

local function pending(stream, group, id)
  return redis.call('XPENDING', stream, group, id, id, 1)[1]
end

local function mine(stream, group, me, id)
  local row = pending(stream, group, id)
  return row ~= nil and row[2] == me
end

local function entry(stream, id)
  local found = redis.call('XRANGE', stream, id, id)[1]
  return found and found[2]
end

-- XCLAIM forgets an entry that was trimmed, so ask first whether it is there.
local function hand(stream, group, id, to)
  redis.call('XCLAIM', stream, group, to, 0, id, 'JUSTID')
end

local function done(stream, group, id, delete)
  redis.call('XACK', stream, group, id)
  if delete == '1' and #redis.call('XINFO', 'GROUPS', stream) == 1 then
    redis.call('XDEL', stream, id)
  end
end

local function consumers(stream, group)
  local found = {}
  for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local one = {}
    for at = 1, #flat, 2 do one[flat[at]] = flat[at + 1] end
    found[#found + 1] = one
  end
  return found
end

local function milliseconds()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end
