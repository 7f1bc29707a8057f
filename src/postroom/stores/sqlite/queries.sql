-- Every query of the SQLite store. Where a query relies on a partial index, it repeats that
-- index's condition word for word: SQLite sees no further.

-- name: insert
insert into postroom_outbox
    (id, route, lane, state, version, due_at, deliver_at, expires_at, created_at,
     key, type, topic, content_type, headers, payload)
values
    (:id, :route, :lane, :state, :version, :due_at, :deliver_at, :expires_at, :created_at,
     :key, :type, :topic, :content_type, :headers, :payload);

-- name: mark
insert into postroom_inbox (consumer, message_key, message_id, handled_at)
values (:consumer, :message_key, :message_id, :handled_at)
on conflict (consumer, message_key) do nothing;

-- name: tables
select count(*) from sqlite_master where type = 'table' and name = 'postroom_schema';

-- name: version
select max(version) from postroom_schema;

-- name: migrated
insert into postroom_schema (version, name, applied_at) values (:version, :name, :applied_at);

-- name: renew
insert into postroom_relay (name, seen_at, lease, suspected_at, routes)
values (:name, :seen_at, :lease, null, :routes)
on conflict (name) do update set
    seen_at = excluded.seen_at, lease = excluded.lease, suspected_at = null,
    routes = excluded.routes;

-- name: relays
select name, seen_at, lease, suspected_at, routes from postroom_relay order by name;

-- name: suspect
update postroom_relay set suspected_at = :suspected_at where name = :name;

-- name: forget
delete from postroom_relay where name = :name;

-- name: lanes
select route, number, epoch, owner from postroom_lane order by route, number;

-- name: new-lane
insert into postroom_lane (route, number) values (:route, :number) on conflict do nothing;

-- name: pass-lane
update postroom_lane set owner = :owner, epoch = epoch + 1
where route = :route and number = :number;

-- name: give-lane
update postroom_lane set owner = null, epoch = epoch + 1
where route = :route and number = :number and epoch = :epoch and owner is not null;

-- name: leave-lanes
update postroom_lane set owner = null, epoch = epoch + 1 where owner = :owner;

-- name: owned
select 1 from postroom_lane
where route = ? and number = ? and epoch = ? and owner is not null;

-- name: ready-seqs
select seq from postroom_outbox
where state = 'ready' and route = ? and lane = ? and seq > ? order by seq;

-- name: ready-rows
select {columns},
    exists (
        select 1 from postroom_outbox as earlier
        where earlier.blocks = 1 and earlier.key is not null
            and earlier.route = entry.route and earlier.key = entry.key
            and earlier.seq < entry.seq
    ) as behind
from json_each(:seqs) as chosen cross join postroom_outbox as entry on entry.seq = chosen.value
where entry.state = 'ready';

-- name: still-ready
select entry.seq, entry.id, entry.route, entry.lane
from json_each(:seqs) as chosen cross join postroom_outbox as entry on entry.seq = chosen.value
where entry.state = 'ready';

-- name: delete
delete from postroom_outbox where seq = ?;

-- name: sent
update postroom_outbox set state = 'sent', settled_at = ?, error = null where seq = ?;

-- name: retry
update postroom_outbox
set state = 'waiting', blocks = 1, attempts = attempts + 1, error = :error,
    due_at = case when expires_at < :due_at then expires_at else :due_at end
where seq = :seq;

-- name: dead
update postroom_outbox
set state = 'dead', blocks = :blocks, attempts = attempts + :attempts, error = :error,
    settled_at = :settled_at
where seq = :seq;

-- name: hold
update postroom_outbox set state = 'held', blocks = 1
where seq = ? and state = 'ready' and key is not null;

-- name: ready
update postroom_outbox set state = 'ready', blocks = 0, due_at = null where seq = ?;

-- name: renumber
update postroom_outbox
set seq = :place, state = 'ready', blocks = 0, due_at = null
where seq = :seq;

-- name: some-blocker
select 1 from postroom_outbox
where blocks = 1 and key is not null and route = ? limit 1;

-- name: blocked-among
select chosen.value from json_each(:keys) as chosen
where exists (
    select 1 from postroom_outbox
    where blocks = 1 and key is not null and route = :route and key = chosen.value
);

-- name: first-blocker
select seq, state, lane from postroom_outbox
where blocks = 1 and key is not null and route = ? and key = ? order by seq limit 1;

-- A key is named by a row that has it: one that is no text is never bound as a value.
-- name: blockers
select seq, state from postroom_outbox
where blocks = 1 and key is not null and route = :route
    and key = (select key from postroom_outbox where seq = :one)
order by seq limit :limit;

-- name: ready-among
select 1 from (
    select key from postroom_outbox
    where state = 'ready' and route = :route and lane = :lane and seq > :after and seq < :before
    order by seq limit :look
) as ready
where ready.key = (select key from postroom_outbox where seq = :one) limit 1;

-- name: earliest-due
select chosen.value,
    (select due_at from postroom_outbox
     where due_at is not null and route = :route and lane = chosen.value
     order by due_at limit 1) as due_at
from json_each(:lanes) as chosen;

-- name: due-rows
select due_at, seq from postroom_outbox
where due_at is not null and route = ? and lane = ? and due_at <= ? and state = ?
order by due_at, seq limit ?;

-- name: expired-parked
select entry.seq, entry.lane
from json_each(:lanes) as chosen cross join postroom_outbox as entry
where entry.state = 'dead' and entry.blocks = 1 and entry.expires_at is not null
    and entry.route = :route and entry.lane = chosen.value and entry.expires_at <= :now
limit :limit;

-- name: unblock
update postroom_outbox set blocks = 0 where seq = ? and state = 'dead';

-- name: blocked-keys
with recursive blocked (key, number) as (
    select min(key), 1 from postroom_outbox
    where blocks = 1 and key is not null and route = :route and key >= cast(:after as text)
    union all
    select
        (select min(later.key) from postroom_outbox as later
         where later.blocks = 1 and later.key is not null
            and later.route = :route and later.key > blocked.key),
        number + 1
    from blocked where blocked.key is not null and number < :limit
)
select blocked.key,
    (select seq from postroom_outbox
     where blocks = 1 and key is not null and route = :route and key = blocked.key
     order by seq limit 1)
from blocked where blocked.key is not null;

-- name: stands
select state, lane from postroom_outbox where seq = ?;

-- name: places
update sqlite_sequence set seq = seq + :count where name = 'postroom_outbox';

-- name: last-place
select seq from sqlite_sequence where name = 'postroom_outbox';

-- name: count-rows
select route, 'ready', count(*), min(created_at)
from postroom_outbox where state = 'ready' group by route
union all
select route, 'held', count(*), min(created_at)
from postroom_outbox where blocks = 1 and key is not null and state = 'held' group by route
union all
select route, state, count(*), case state when 'waiting' then min(created_at) end
from postroom_outbox where due_at is not null group by route, state
union all
select route, 'sent', count(*), null
from postroom_outbox where state = 'sent' group by route
union all
select route, 'dead', count(*), null
from postroom_outbox where state = 'dead' group by route;

-- name: count-blocked
select count(*) from (
    select distinct route, key from postroom_outbox
    where blocks = 1 and key is not null and state in ('waiting', 'dead')
);

-- name: count-inbox
select consumer, count(*) from postroom_inbox group by consumer;

-- name: count-lanes
select owner, count(*) from postroom_lane where owner is not null group by owner;

-- name: find
select {columns}, 0 as behind from postroom_outbox as entry {index}
where {conditions} order by entry.seq limit :limit;

-- name: match
select entry.seq, entry.state, entry.blocks from postroom_outbox as entry {index}
where {conditions} order by entry.seq limit :limit;

-- name: columns
entry.seq, entry.id, entry.route, entry.lane, entry.state, entry.blocks, entry.attempts,
entry.version, entry.due_at, entry.deliver_at, entry.expires_at, entry.created_at,
entry.settled_at, entry.key, entry.type, entry.topic, entry.content_type, entry.error,
entry.headers, entry.payload;

-- name: index-scheduled
indexed by postroom_outbox_due;

-- name: index-waiting
indexed by postroom_outbox_due;

-- name: index-held
indexed by postroom_outbox_blockers;

-- name: where-seq
entry.seq > :after_seq;

-- name: where-states
entry.state in (select value from json_each(:states));

-- name: where-scheduled
entry.state = 'scheduled' and entry.due_at is not null;

-- name: where-ready
entry.state = 'ready';

-- name: where-waiting
entry.state = 'waiting' and entry.due_at is not null;

-- name: where-held
entry.state = 'held' and entry.blocks = 1 and entry.key is not null;

-- name: where-sent
entry.state = 'sent';

-- name: where-dead
entry.state = 'dead';

-- name: where-blocking
entry.blocks = 1;

-- name: where-ids
entry.id in (select value from json_each(:ids));

-- name: where-route
entry.route = :route;

-- name: where-key
entry.key = :key;

-- name: where-type
entry.type = :type;

-- name: where-topic
entry.topic = :topic;

-- name: where-from
entry.created_at >= :created_from;

-- name: where-before
entry.created_at < :created_before;

-- name: replay-in-place
update postroom_outbox
set state = 'ready', blocks = 0, attempts = 0, error = null, settled_at = null
where seq = :seq;

-- name: replay-at-end
update postroom_outbox
set seq = :place, state = 'ready', blocks = 0, attempts = 0, error = null, settled_at = null
where seq = :seq;

-- name: count-sent-before
select count(*) from postroom_outbox where state = 'sent' and settled_at < :before;

-- name: prune-sent
delete from postroom_outbox where seq in (
    select seq from postroom_outbox
    where state = 'sent' and settled_at < :before order by settled_at limit :limit
);

-- name: count-inbox-before
select count(*) from postroom_inbox where handled_at < :before;

-- name: prune-inbox
delete from postroom_inbox where (consumer, message_key) in (
    select consumer, message_key from postroom_inbox
    where handled_at < :before order by handled_at limit :limit
);

-- name: record
insert into postroom_audit (at, actor, action, detail, count)
values (:at, :actor, :action, :detail, :count);

-- name: record-more
update postroom_audit set count = count + :count where number = :number;

-- name: records
select at, actor, action, detail, count from postroom_audit order by number desc limit :limit;
