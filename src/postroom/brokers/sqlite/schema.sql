-- The file of an embedded broker. Times are microseconds since 1970, in UTC.

-- What was published, kept until its groups are done with it and the retention is over.
CREATE TABLE message (
    position     INTEGER PRIMARY KEY AUTOINCREMENT,
    topic        TEXT    NOT NULL,
    key          TEXT,
    id           TEXT    NOT NULL,
    type         TEXT    NOT NULL,
    version      INTEGER,
    content_type TEXT    NOT NULL,
    payload      BLOB    NOT NULL,
    headers      TEXT    NOT NULL,      -- JSON object, text to text
    deliver_at   INTEGER,
    expires_at   INTEGER,
    sent_at      INTEGER NOT NULL,
    only_grp     TEXT                   -- a replayed dead letter: for this group alone
);

CREATE TABLE group_topic (
    grp        TEXT    NOT NULL,
    topic      TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (grp, topic)
) WITHOUT ROWID;

CREATE INDEX group_topic_by_topic ON group_topic (topic, grp);

-- What a group has not finished; what is done leaves no row. Of each key only the first is
-- anywhere but behind, so that neither a long queue nor a long key is ever searched.
CREATE TABLE delivery (
    grp        TEXT    NOT NULL,
    position   INTEGER NOT NULL,
    topic      TEXT    NOT NULL,
    key        TEXT,
    state      TEXT    NOT NULL CHECK (state IN ('behind', 'ready', 'out', 'delayed')),
    owner      TEXT,
    free_at    INTEGER NOT NULL DEFAULT 0,
    attempts   INTEGER NOT NULL DEFAULT 0,
    handed_out INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    PRIMARY KEY (grp, position),
    CHECK ((state = 'out') = (owner IS NOT NULL))
) WITHOUT ROWID;

CREATE INDEX delivery_by_key ON delivery (grp, key, position) WHERE key IS NOT NULL;
CREATE INDEX delivery_ready ON delivery (grp, topic, position) WHERE state = 'ready';
CREATE INDEX delivery_delayed ON delivery (grp, free_at) WHERE state = 'delayed';
CREATE INDEX delivery_out ON delivery (owner) WHERE state = 'out';

-- One row for each live subscription; `lease` in microseconds.
CREATE TABLE consumer (
    name    TEXT    NOT NULL PRIMARY KEY,
    grp     TEXT    NOT NULL,
    seen_at INTEGER NOT NULL,
    lease   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE dead_letter (
    grp          TEXT    NOT NULL,
    position     INTEGER NOT NULL,
    topic        TEXT    NOT NULL,
    key          TEXT,
    id           TEXT    NOT NULL,
    type         TEXT    NOT NULL,
    version      INTEGER,
    content_type TEXT    NOT NULL,
    payload      BLOB    NOT NULL,
    headers      TEXT    NOT NULL,
    deliver_at   INTEGER,
    expires_at   INTEGER,
    reason       TEXT    NOT NULL,
    attempts     INTEGER NOT NULL,
    died_at      INTEGER NOT NULL,
    PRIMARY KEY (grp, position)
);

CREATE INDEX dead_letter_by_topic ON dead_letter (grp, topic);
