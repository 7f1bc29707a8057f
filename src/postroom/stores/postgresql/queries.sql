-- Every query of the PostgreSQL store. `{now}` is the time: the database's own, or the one given.
-- Casts are written out, so that every client library can run them. `seq + 0` asks for the order of
-- an index that has it in this form: see the tables.

-- name: now
coalesce(cast(:now as bigint), cast(extract(epoch from clock_timestamp()) * 1000000 as bigint));

-- name: clock
select {now};

-- name: begin-read
begin isolation level read committed read only;
set local statement_timeout = {statement};
set local idle_in_transaction_session_timeout = {idle};
set local jit = off;
set local enable_seqscan = off;
set local enable_bitmapscan = off;

-- name: begin-write
begin isolation level read committed;
set local statement_timeout = {statement};
set local lock_timeout = {lock};
set local idle_in_transaction_session_timeout = {idle};
set local jit = off;
set local enable_seqscan = off;
set local enable_bitmapscan = off;

-- name: woken
-- 0, and wakes whoever sleeps; the same as in the table's own default for `created_at`.
case
    when pg_sequence_last_value('postroom_asleep') > date_part('epoch', clock_timestamp()) * 1000000
        then postroom_wake('postroom_asleep', 'postroom_outbox')
    else 0
end;

-- name: insert-one
insert into postroom_outbox
    (id, route, lane, version, expires_at, key, type, topic, content_type, headers, payload)
values
    (cast(:id as text), cast(:route as text), cast(:lane as smallint), cast(:version as bigint),
     cast(:expires_at as bigint), cast(:key as text), cast(:type as text), cast(:topic as text),
     cast(:content_type as text), cast(:headers as text), cast(:payload as bytea));

-- name: insert-many
insert into postroom_outbox
    (id, route, lane, state, version, due_at, deliver_at, expires_at, created_at,
     key, type, topic, content_type, headers, payload)
select
    new.id, new.route, new.lane,
    case when new.deliver_at > clock.now then 'scheduled' else 'ready' end,
    new.version,
    case when new.deliver_at > clock.now then new.deliver_at end,
    new.deliver_at, new.expires_at, clock.now,
    new.key, new.type, new.topic, new.content_type, new.headers, new.payload
from (select {now} + {woken} as now) as clock,
    unnest(
        cast(:ids as text[]), cast(:routes as text[]), cast(:lanes as smallint[]),
        cast(:versions as bigint[]), cast(:deliver_ats as bigint[]),
        cast(:expires_ats as bigint[]), cast(:keys as text[]), cast(:types as text[]),
        cast(:topics as text[]), cast(:content_types as text[]), cast(:headers as text[]),
        cast(:payloads as bytea[])
    ) with ordinality as new
        (id, route, lane, version, deliver_at, expires_at, key, type, topic, content_type,
         headers, payload, place)
order by new.place;

-- name: mark
insert into postroom_inbox (consumer, message_key, message_id, handled_at)
values (:consumer, :message_key, :message_id, {now})
on conflict (consumer, message_key) do nothing;

-- name: encoding
select current_setting('server_encoding');

-- name: tables
select to_regclass(:name) is not null;

-- name: version
select max(version) from postroom_schema;

-- name: migration-lock
select pg_advisory_xact_lock(:number);

-- name: migrated
insert into postroom_schema (version, name, applied_at) values (:version, :name, {now});

-- name: lease-lock
select pg_advisory_xact_lock(
    5795975185870843757 + cast(cast(cast('postroom_relay' as regclass) as oid) as bigint)
);

-- name: renew
insert into postroom_relay (name, seen_at, lease, suspected_at, routes)
values (:name, {now}, :lease, null, :routes)
on conflict (name) do update set
    seen_at = excluded.seen_at, lease = excluded.lease, suspected_at = null,
    routes = excluded.routes;

-- name: relays
select name, seen_at, lease, suspected_at, routes, {now} from postroom_relay order by name;

-- name: suspect
update postroom_relay set suspected_at = {now} where name = :name;

-- name: forget
delete from postroom_relay where name = any (cast(:names as text[]));

-- name: lanes
select route, number, epoch, owner from postroom_lane order by route, number;

-- name: new-lanes
insert into postroom_lane (route, number)
select route, number
from unnest(cast(:routes as text[])) as route cross join generate_series(0, 63) as number
order by route, number
on conflict do nothing;

-- name: pass-lanes
-- A lane in which the last owner's statement still runs is left for the next time.
with free as materialized (
    select lane.route, lane.number
    from postroom_lane as lane
    join unnest(cast(:routes as text[]), cast(:numbers as smallint[])) as passed (route, number)
        on lane.route = passed.route and lane.number = passed.number
    order by lane.route, lane.number
    for no key update of lane skip locked
)
update postroom_lane as lane set owner = cast(:owner as text), epoch = lane.epoch + 1
from free where lane.route = free.route and lane.number = free.number;

-- name: give-lanes
with mine as materialized (
    select lane.route, lane.number
    from postroom_lane as lane
    join unnest(cast(:routes as text[]), cast(:numbers as smallint[]), cast(:epochs as bigint[]))
        as given (route, number, epoch)
        on lane.route = given.route and lane.number = given.number and lane.epoch = given.epoch
    where lane.owner is not null
    order by lane.route, lane.number
    for no key update of lane
)
update postroom_lane as lane set owner = null, epoch = lane.epoch + 1
from mine where lane.route = mine.route and lane.number = mine.number;

-- name: leave-lanes
with mine as materialized (
    select lane.route, lane.number from postroom_lane as lane
    where lane.owner = :owner
    order by lane.route, lane.number
    for no key update of lane
)
update postroom_lane as lane set owner = null, epoch = lane.epoch + 1
from mine where lane.route = mine.route and lane.number = mine.number;

-- name: keep-marks
with mine as materialized (
    select lane.route, lane.number, known.mark
    from postroom_lane as lane
    join unnest(
        cast(:routes as text[]), cast(:numbers as smallint[]), cast(:epochs as bigint[]),
        cast(:marks as bigint[]), cast(:nudges as bigint[])
    ) as known (route, number, epoch, mark, nudges)
        on lane.route = known.route and lane.number = known.number
        and lane.epoch = known.epoch and lane.nudges = known.nudges and lane.mark < known.mark
    where lane.owner is not null
    order by lane.route, lane.number
    for no key update of lane skip locked
)
update postroom_lane as lane set mark = mine.mark
from mine where lane.route = mine.route and lane.number = mine.number;

-- name: position
select case when is_called then last_value else last_value - 1 end from postroom_place;

-- name: own-transaction
select cast(cast(pg_current_xact_id() as text) as bigint);

-- name: read
-- One row at least for every lane: without a seq where it has nothing ready. Blockers are looked up
-- once for each key, and no two results are joined: the planner would take both for one row.
with asked as materialized (
    select lane.route, lane.number, lane.nudges,
        case when lane.nudges = known.nudges then known.mark else lane.mark end as mark
    from unnest(
        cast(:routes as text[]), cast(:numbers as smallint[]),
        cast(:marks as bigint[]), cast(:nudges as bigint[])
    ) as known (route, number, mark, nudges)
    join postroom_lane as lane on lane.route = known.route and lane.number = known.number
    where lane.route = any (cast(:served as text[]))
),
found as (
    select asked.route as asked_route, asked.number, asked.mark, asked.nudges, ready.*
    from asked left join lateral (
        select first.*, row_number() over (order by first.seq) as turn
        from (
            select * from postroom_outbox as entry
            where entry.state = 'ready' and entry.route = asked.route
                and entry.lane = asked.number and entry.seq + 0 > asked.mark
                and entry.seq <> all (cast(:skip as bigint[]))
            order by entry.seq + 0 limit :per_lane
        ) as first
    ) as ready on true
),
cut as (
    select found.*, row_number() over turns as place, sum(octet_length(payload)) over turns as bytes
    from found window turns as (order by turn, seq)
),
kept as (
    select * from cut
    where seq is null or place <= :limit and (place = 1 or bytes <= :max_bytes)
),
marked as (
    select kept.*, case when key is not null and row_number() over keys = 1 then (
        select blocker.seq from postroom_outbox as blocker
        where {blocking} and {hash-of-blocker} = hashtextextended(kept.key, 0)
            and blocker.route = kept.route and blocker.key = kept.key
        order by blocker.seq + 0 limit 1
    ) end as head
    from kept window keys as (partition by route, key order by seq)
)
select {columns},
    coalesce(max(entry.head) over (partition by entry.route, entry.key) < entry.seq, false),
    entry.asked_route, entry.number, entry.mark, entry.nudges,
    (select cast(cast(pg_snapshot_xmin(pg_current_snapshot()) as text) as bigint)) as oldest
from marked as entry
order by entry.seq;

-- name: fence
-- Locks the lanes that are still ours: nobody can take one before this transaction ends.
select lane.number from postroom_lane as lane
join unnest(cast(:numbers as smallint[]), cast(:epochs as bigint[])) as ours (number, epoch)
    on lane.number = ours.number and lane.epoch = ours.epoch
where lane.route = :route and lane.owner is not null
order by lane.number
for no key update of lane;

-- name: still-ready
-- Written so that the index of ready rows does not fit: by old statistics the planner may take it
-- for empty, and would read all of it.
entry.state || '' = 'ready';

-- name: settle-gone
with fence as materialized ({fence}),
settled as (
delete from postroom_outbox as entry
using unnest(cast(:seqs as bigint[]), cast(:ids as text[])) as done (seq, id)
where entry.seq = done.seq and entry.id = done.id and {still-ready}
    and entry.route = :route and entry.lane = any (array(select number from fence))
returning entry.seq, entry.key
)
{followed};

-- name: settle-sent
with fence as materialized ({fence}),
settled as (
update postroom_outbox as entry
set state = 'sent', settled_at = (select {now}), error = null
from unnest(cast(:seqs as bigint[]), cast(:ids as text[])) as done (seq, id)
where entry.seq = done.seq and entry.id = done.id and {still-ready}
    and entry.route = :route and entry.lane = any (array(select number from fence))
returning entry.seq, entry.key
)
{followed};

-- name: settle-other
with fence as materialized ({fence}),
settled as (
update postroom_outbox as entry
set state = done.state, blocks = done.blocks, attempts = entry.attempts + done.attempts,
    error = done.error,
    due_at = case
        when done.state = 'waiting' then least(entry.expires_at, (select {now}) + done.delay)
    end,
    settled_at = case when done.state = 'dead' then (select {now}) end
from unnest(
    cast(:seqs as bigint[]), cast(:ids as text[]), cast(:states as text[]),
    cast(:blocks as boolean[]), cast(:attempts as integer[]), cast(:errors as text[]),
    cast(:delays as bigint[])
) as done (seq, id, state, blocks, attempts, error, delay)
where entry.seq = done.seq and entry.id = done.id and {still-ready}
    and entry.route = :route and entry.lane = any (array(select number from fence))
returning entry.seq, case when entry.state = 'dead' and not entry.blocks then entry.key end as key
)
{followed};

-- name: blocking
blocker.blocks and blocker.key is not null;

-- name: hash-of-blocker
hashtextextended(blocker.key, 0);

-- name: followed
-- The rows that were ours, and the keys of them that somebody stands behind. Not EXISTS, which may
-- become a join: again the planner would take the blocking rows for a single one.
select settled.seq, null as key from settled
union all
select null, gone.key from (select distinct key from settled where key is not null) as gone
where (
    select true from postroom_outbox as blocker
    where {blocking} and {hash-of-blocker} = hashtextextended(gone.key, 0)
        and blocker.route = :route and blocker.key = gone.key
    limit 1
);

-- name: hold
with fence as materialized ({fence})
update postroom_outbox as entry set state = 'held', blocks = true
from unnest(cast(:seqs as bigint[]), cast(:ids as text[])) as done (seq, id)
where entry.seq = done.seq and entry.id = done.id and {still-ready}
    and entry.key is not null
    and entry.route = :route and entry.lane = any (array(select number from fence));

-- name: release
-- The first held rows of each key, if only such stand first. Not while the last chunk is still on
-- its way: if its head failed, all of them would have to be held again.
with passed as (
    select * from unnest(
        cast(:keys as text[]), cast(:lanes as smallint[]), cast(:afters as bigint[])
    ) as passed (key, lane, seq)
),
first as materialized (
    select passed.key
    from passed cross join lateral (
        select blocker.seq, blocker.state from postroom_outbox as blocker
        where {blocking} and {hash-of-blocker} = hashtextextended(passed.key, 0)
            and blocker.route = :route and blocker.key = passed.key
        order by blocker.seq + 0 limit 1
    ) as head
    where head.state = 'held' and not exists (
        select from (
            select ready.key from postroom_outbox as ready
            where ready.state = 'ready' and ready.route = :route and ready.lane = passed.lane
                and ready.seq + 0 > passed.seq and ready.seq + 0 < head.seq
            order by ready.seq + 0 limit 200
        ) as flying
        where flying.key = passed.key
    )
),
free as materialized (
    select chunk.seq
    from first cross join lateral (
        select near.seq, bool_and(near.state = 'held') over (order by near.seq) as open
        from (
            select blocker.seq, blocker.state from postroom_outbox as blocker
            where {blocking} and {hash-of-blocker} = hashtextextended(first.key, 0)
                and blocker.route = :route and blocker.key = first.key
            order by blocker.seq + 0 limit :chunk
        ) as near
    ) as chunk
    where chunk.open
    order by chunk.seq limit :room
),
freed as (
    update postroom_outbox as entry set state = 'ready', blocks = false
    where entry.seq = any (array(select seq from free)) and entry.state = 'held'
    returning entry.lane, entry.seq
),
{nudge}
select count(*) from freed;

-- name: nudge
-- Rows below the mark of their lane became ready: the mark is lowered, and its owner told.
known as (
    select * from unnest(
        cast(:known_numbers as smallint[]), cast(:known_marks as bigint[]),
        cast(:known_nudges as bigint[])
    ) as known (number, mark, nudges)
),
nudged as (
    update postroom_lane as lane
    set nudges = lane.nudges + 1,
        mark = least(
            case
                when lane.nudges = lowest.nudges then greatest(lane.mark, lowest.mark)
                else lane.mark
            end,
            lowest.seq - 1
        )
    from (
        select freed.lane, min(freed.seq) as seq, min(known.mark) as mark,
            min(known.nudges) as nudges
        from freed left join known on known.number = freed.lane
        group by freed.lane
    ) as lowest
    where lane.route = :route and lane.number = lowest.lane
);

-- name: look
select ours.number,
    (select entry.due_at from postroom_outbox as entry
     where entry.due_at is not null and entry.route = :route and entry.lane = ours.number
     order by entry.due_at limit 1) as due_at,
    {now} as now
from unnest(cast(:numbers as smallint[])) as ours (number);

-- name: expired-parked
select parked.key, parked.lane, parked.seq
from unnest(cast(:numbers as smallint[])) as ours (number)
cross join lateral (
    select entry.key, entry.lane, entry.seq from postroom_outbox as entry
    where entry.settled_at is not null and entry.blocks and entry.expires_at is not null
        and entry.route = :route and entry.lane = ours.number
        and entry.expires_at <= (select {now})
    limit :limit
) as parked
limit :limit;

-- name: blocked-keys
-- One key after another, so that a key with many rows costs no more than one with few.
with recursive blocked (hash, number) as (
    (select {hash-of-blocker}, 1 from postroom_outbox as blocker
     where {blocking} and {hash-of-blocker} >= :after
     order by {hash-of-blocker} limit 1)
    union all
    select later.hash, blocked.number + 1
    from blocked cross join lateral (
        select {hash-of-blocker} as hash from postroom_outbox as blocker
        where {blocking} and {hash-of-blocker} > blocked.hash
        order by {hash-of-blocker} limit 1
    ) as later
    where blocked.number < :limit
)
select blocked.hash, head.key, head.lane, head.state
from blocked left join lateral (
    select blocker.key, blocker.lane, blocker.state from postroom_outbox as blocker
    where {blocking} and {hash-of-blocker} = blocked.hash and blocker.route = :route
    order by blocker.seq + 0 limit 1
) as head on true;

-- name: promote-waiting
with {due},
freed as (
    update postroom_outbox as entry set state = 'ready', blocks = false, due_at = null
    from due where entry.seq = due.seq
    returning entry.lane, entry.seq
),
{nudge}
select count(*) from freed;

-- name: promote-scheduled
with {due},
placed as materialized (
    select due.seq,
        case when pg_current_xact_id() is not null then nextval('postroom_place') end as place
    from due
),
freed as (
    update postroom_outbox as entry
    set seq = placed.place, state = 'ready', blocks = false, due_at = null
    from placed where entry.seq = placed.seq
    returning entry.seq
)
select count(*) from freed;

-- name: due
found as materialized (
    select near.seq
    from unnest(cast(:numbers as smallint[])) as ours (number)
    cross join lateral (
        select entry.seq, entry.due_at from postroom_outbox as entry
        where entry.due_at is not null and entry.route = :route and entry.lane = ours.number
            and entry.due_at <= (select {now}) and entry.state = cast(:state as text)
        order by entry.due_at, entry.seq limit :limit
    ) as near
    order by near.due_at, near.seq limit :limit
),
due as materialized (
    select entry.seq from postroom_outbox as entry
    where entry.seq = any (array(select seq from found)) and entry.state = cast(:state as text)
    order by entry.due_at, entry.seq
    for update skip locked
);

-- name: unblock
update postroom_outbox set blocks = false
where seq = any (cast(:seqs as bigint[])) and state = 'dead' and blocks;

-- name: ready-below
select entry.seq from postroom_outbox as entry
where entry.state = 'ready' and entry.route = :route and entry.lane = :number
    and entry.seq + 0 <= :mark
order by entry.seq + 0 limit 1;

-- name: lower-marks
update postroom_lane set nudges = nudges + 1, mark = :position where mark > :position;

-- name: nudge-lane
update postroom_lane set nudges = nudges + 1, mark = least(mark, cast(:seq as bigint) - 1)
where route = :route and number = :number;

-- name: count-rows
select route, 'ready', count(*), min(created_at)
from postroom_outbox where state = 'ready' group by route
union all
select route, 'held', count(*), min(created_at)
from postroom_outbox where blocks and key is not null and state = 'held' group by route
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
    where blocks and key is not null and state in ('waiting', 'dead')
) as blocked;

-- name: count-inbox
select consumer, count(*) from postroom_inbox group by consumer;

-- name: count-lanes
select owner, count(*) from postroom_lane where owner is not null group by owner;

-- name: find
select {columns}, false as behind from postroom_outbox as entry
where {conditions} order by entry.seq limit :limit;

-- name: match
select entry.seq, entry.blocks, entry.route, entry.lane from postroom_outbox as entry
where {conditions} order by entry.seq limit :limit;

-- name: columns
entry.seq, entry.id, entry.route, entry.lane, entry.state, entry.blocks, entry.attempts,
entry.version, entry.due_at, entry.deliver_at, entry.expires_at, entry.created_at,
entry.settled_at, entry.key, entry.type, entry.topic, entry.content_type, entry.error,
entry.headers, entry.payload;

-- name: where-seq
entry.seq > :after_seq;

-- name: where-states
entry.state = any (cast(:states as text[]));

-- name: where-scheduled
entry.state = 'scheduled' and entry.due_at is not null;

-- name: where-ready
entry.state = 'ready';

-- name: where-waiting
entry.state = 'waiting' and entry.due_at is not null;

-- name: where-held
entry.state = 'held' and entry.blocks and entry.key is not null;

-- name: where-sent
entry.state = 'sent';

-- name: where-dead
entry.state = 'dead';

-- name: where-blocking
entry.blocks;

-- name: where-ids
entry.id = any (cast(:ids as text[]));

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

-- name: lock-lanes
select count(*) from (
    select from postroom_lane as lane
    join unnest(cast(:routes as text[]), cast(:numbers as smallint[])) as touched (route, number)
        on lane.route = touched.route and lane.number = touched.number
    order by lane.route, lane.number
    for no key update of lane
) as locked;

-- name: replay-in-place
with freed as (
    update postroom_outbox
    set state = 'ready', blocks = false, attempts = 0, error = null, settled_at = null
    where seq = any (cast(:seqs as bigint[])) and state = 'dead' and blocks
    returning route, lane, seq
),
nudged as (
    update postroom_lane as lane
    set nudges = lane.nudges + 1, mark = least(lane.mark, lowest.seq - 1)
    from (select route, lane, min(seq) as seq from freed group by route, lane) as lowest
    where lane.route = lowest.route and lane.number = lowest.lane
)
select count(*) from freed;

-- name: replay-at-end
with moved as materialized (
    select entry.seq from postroom_outbox as entry
    where entry.seq = any (cast(:seqs as bigint[])) and not entry.blocks
        and entry.state in ('dead', 'sent')
    order by entry.seq for update
),
placed as materialized (
    select moved.seq,
        case when pg_current_xact_id() is not null then nextval('postroom_place') end as place
    from moved
)
update postroom_outbox as entry
set seq = placed.place, state = 'ready', attempts = 0, error = null, settled_at = null
from placed where entry.seq = placed.seq;

-- name: discard
delete from postroom_outbox
where seq = any (cast(:seqs as bigint[])) and state = any (cast(:states as text[]));

-- name: count-sent-before
select count(*) from postroom_outbox where state = 'sent' and settled_at < :before;

-- name: prune-sent
with old as materialized (
    select seq, settled_at from postroom_outbox
    where state = 'sent' and settled_at >= :after and settled_at < :before
    order by settled_at limit :limit
    for update skip locked
),
gone as (
    delete from postroom_outbox where seq = any (array(select seq from old)) returning 1
)
select (select count(*) from gone), (select max(settled_at) from old);

-- name: count-inbox-before
select count(*) from postroom_inbox where handled_at < :before;

-- name: prune-inbox
with old as materialized (
    select ctid, handled_at from postroom_inbox
    where handled_at >= :after and handled_at < :before
    order by handled_at limit :limit
),
gone as (
    delete from postroom_inbox where ctid = any (array(select ctid from old)) returning 1
)
select (select count(*) from gone), (select max(handled_at) from old);

-- name: record
insert into postroom_audit (at, actor, action, detail, count)
values ({now}, :actor, :action, :detail, :count) returning number;

-- name: record-more
update postroom_audit set count = count + :count where number = :number;

-- name: records
select at, actor, action, detail, count from postroom_audit order by number desc limit :limit;

-- name: channel
select 'postroom-' || cast(cast(cast('postroom_outbox' as regclass) as oid) as text);

-- name: sleep
-- Says until when a relay sleeps, and tells whether what was said before still held. No row if it
-- holds for long enough. Nobody waits for the disk: a word that a crash takes back is given again.
select setval('postroom_asleep', until.moment), asleep.last_value > until.now,
    set_config('synchronous_commit', 'off', true)
from (
    select {now} as now, {now} + cast(:length as bigint) as moment
) as until, postroom_asleep as asleep
where asleep.last_value < until.moment - cast(:length as bigint) / 2;

-- name: own-session
-- For a session that is ours alone. A prepared read is planned for no values in particular, always
-- with these settings, also when it is planned again.
select set_config('statement_timeout', cast(:timeout as text), false),
    set_config('jit', 'off', false),
    set_config('enable_seqscan', 'off', false),
    set_config('enable_bitmapscan', 'off', false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('default_transaction_read_only', 'on', false);

-- name: backend
select pg_backend_pid();

-- name: notify
select pg_notify(:channel, :word);

-- name: schema-exists
select exists (select from pg_namespace where nspname = :name);
