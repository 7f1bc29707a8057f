-- All times are microseconds since 1970 (UTC).

create table postroom_schema (
    version integer primary key,
    name text not null,
    applied_at bigint not null
);

-- The places in the order. CACHE 1: a session that kept numbers back would give out low ones late.
create sequence postroom_place as bigint cache 1;

-- What a writer in any language may put into a column. Domains, because a session keeps what it has
-- read of them: a CHECK of the table is read anew at every INSERT and takes half of its time.
create domain postroom_lane_number as smallint check (value between 0 and 63);
create domain postroom_state as text collate "C"
    check (value in ('scheduled', 'ready', 'waiting', 'held', 'sent', 'dead'));
create domain postroom_delayed_state as text collate "C"
    check (value in ('scheduled', 'waiting'));
create domain postroom_id as text collate "C" check (octet_length(value) between 1 and 255);
create domain postroom_route as text collate "C" check (octet_length(value) <= 255);
create domain postroom_key as text collate "C" check (octet_length(value) <= 1024);

-- The messages. A row takes its transaction's id before its place: whoever sees that all older
-- transactions have ended then knows that all lower places are visible or will never be. Wide
-- columns stand last.
create table postroom_outbox (
    seq bigint primary key
        default (case when pg_current_xact_id() is not null then nextval('postroom_place') end),
    version bigint,
    due_at bigint,
    deliver_at bigint,
    expires_at bigint,
    created_at bigint not null,
    settled_at bigint,
    attempts integer not null default 0,
    lane postroom_lane_number not null,
    blocks boolean not null default false,
    state postroom_state not null default 'ready',
    id postroom_id not null unique,
    route postroom_route not null default 'default',
    key postroom_key,
    type text collate "C" not null,
    topic text collate "C" not null,
    content_type text collate "C" not null default 'application/json',
    error text collate "C",
    headers text collate "C" not null default '{}',
    payload bytea not null,
    check (case when due_at is not null then cast(state as postroom_delayed_state) is not null end)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
alter sequence postroom_place owned by postroom_outbox.seq;

-- A fresh row touches the first of these and the two unique ones, no other. `seq + 0` is an order
-- that the primary key cannot give: with old statistics the planner would else now and then go
-- through all rows ever sent instead of this index. The hash keeps the index of blocking rows low:
-- it is asked once for every key that is read.
create index postroom_outbox_ready on postroom_outbox (route, lane, (seq + 0))
    where state = 'ready';
create index postroom_outbox_due on postroom_outbox (route, lane, due_at)
    where due_at is not null;
create index postroom_outbox_blockers on postroom_outbox (hashtextextended(key, 0), (seq + 0))
    where blocks and key is not null;
-- Of the rows that block only a dead one has been settled.
create index postroom_outbox_parked on postroom_outbox (route, lane, expires_at)
    where settled_at is not null and blocks and expires_at is not null;
create index postroom_outbox_dead on postroom_outbox (seq) where state = 'dead';
create index postroom_outbox_sent on postroom_outbox (settled_at) where state = 'sent';

-- Who may read and settle what; the epoch rises at every change of owner. Up to `mark` nothing of
-- the lane is ready; whoever makes a lower row ready lowers it and raises `nudges`.
create table postroom_lane (
    route text collate "C" not null,
    number postroom_lane_number not null,
    owner text collate "C",
    epoch bigint not null default 0,
    mark bigint not null default 0,
    nudges bigint not null default 0,
    primary key (route, number)
) with (
    fillfactor = 25,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0
);

-- The relays: one row each is all that a renewal writes.
create table postroom_relay (
    name text collate "C" primary key,
    seen_at bigint not null,
    lease bigint not null,
    suspected_at bigint,
    routes text not null
) with (
    fillfactor = 25,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 100,
    autovacuum_vacuum_cost_delay = 0
);

-- Until when some relay sleeps and wants to be woken. A sequence, because it is changed in place:
-- a row would leave a dead one behind at every change, and every writer would look through them.
-- Whoever wakes the relays takes the word back, so that a burst of writers notifies once.
create sequence postroom_asleep as bigint minvalue 0 start 0;

create function postroom_wake(asleep regclass, outbox regclass) returns bigint
language plpgsql as $$
begin
    -- A transaction that has notified cannot be prepared for a two-phase commit.
    if current_setting('postroom.quiet', true) = 'on' then
        return 0;
    end if;
    perform setval(asleep, 0);
    perform pg_notify('postroom-' || cast(cast(outbox as oid) as text), '');
    return 0;
end
$$;

-- Every row tells the time, and the first one after somebody fell asleep wakes him: asking costs
-- nothing that could be measured here, and 20 to 40 microseconds in a trigger. Not `extract`, which
-- counts in decimals: a double holds the microseconds of 200 years.
alter table postroom_outbox alter created_at set default (
    cast(date_part('epoch', clock_timestamp()) * 1000000 as bigint)
    + case
        when pg_sequence_last_value('postroom_asleep')
            > date_part('epoch', clock_timestamp()) * 1000000
            then postroom_wake('postroom_asleep', 'postroom_outbox')
        else 0
    end
);

-- The messages that took effect. The key is the SHA-256 of the id's UTF-8 bytes: exact for ids
-- of any length. The readable id is shortened and only for people.
create table postroom_inbox (
    handled_at bigint not null,
    consumer text collate "C" not null,
    message_key bytea not null,
    message_id text collate "C" not null,
    primary key (consumer, message_key)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1);
create index postroom_inbox_handled on postroom_inbox (handled_at);

-- What people changed.
create table postroom_audit (
    number bigint generated always as identity primary key,
    at bigint not null,
    actor text not null,
    action text not null,
    detail text not null,
    count bigint not null
);
