-- All times are microseconds since 1970 (UTC).

create table postroom_schema (
    version integer primary key,
    name text not null,
    applied_at integer not null
);

-- The messages. AUTOINCREMENT: the number of a deleted row is never given to another, which a
-- relay that settles late would take for its own. Wide columns stand last, so that the narrow
-- ones are read without them.
create table postroom_outbox (
    seq integer primary key autoincrement,
    id text not null unique,
    route text not null,
    lane integer not null check (typeof(lane) = 'integer' and lane between 0 and 63),
    state text not null
        check (state in ('scheduled', 'ready', 'waiting', 'held', 'sent', 'dead')),
    blocks integer not null default 0 check (blocks in (0, 1)),
    attempts integer not null default 0,
    version integer,
    due_at integer,
    deliver_at integer,
    expires_at integer,
    created_at integer not null,
    settled_at integer,
    key text,
    type text not null,
    topic text not null,
    content_type text not null,
    error text,
    headers text not null default '{}',
    payload blob not null,
    check (due_at is null or state in ('scheduled', 'waiting'))
);

-- A fresh row touches this index and the two unique ones, no other. The last columns of these
-- indexes (the conditions among them) let counts and look-ups do without the table.
create index postroom_outbox_ready on postroom_outbox (route, lane, seq, created_at, state)
    where state = 'ready';
create index postroom_outbox_due on postroom_outbox (route, lane, due_at, state, created_at)
    where due_at is not null;
create index postroom_outbox_blockers
    on postroom_outbox (route, key, seq, state, created_at, blocks)
    where blocks = 1 and key is not null;
create index postroom_outbox_parked on postroom_outbox (route, lane, expires_at)
    where state = 'dead' and blocks = 1 and expires_at is not null;
create index postroom_outbox_dead on postroom_outbox (seq, route, state) where state = 'dead';
create index postroom_outbox_sent on postroom_outbox (settled_at, route, state)
    where state = 'sent';

-- Who may read and settle what; the epoch rises at every change of owner.
create table postroom_lane (
    route text not null,
    number integer not null check (number between 0 and 63),
    owner text,
    epoch integer not null default 0,
    primary key (route, number)
) without rowid;

-- The relays: one row each is all that a renewal writes.
create table postroom_relay (
    name text primary key,
    seen_at integer not null,
    lease integer not null,
    suspected_at integer,
    routes text not null
) without rowid;

-- The messages that took effect. The key is the SHA-256 of the id's UTF-8 bytes: exact for ids
-- of any length. The readable id is shortened and only for people.
create table postroom_inbox (
    consumer text not null,
    message_key blob not null,
    message_id text not null,
    handled_at integer not null,
    primary key (consumer, message_key)
) without rowid;
create index postroom_inbox_handled on postroom_inbox (handled_at);

-- What people changed.
create table postroom_audit (
    number integer primary key autoincrement,
    at integer not null,
    actor text not null,
    action text not null,
    detail text not null,
    count integer not null
);
