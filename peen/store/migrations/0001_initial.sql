-- The first schema. Keys are integers; UUIDs that must be stored are 16-byte blobs, all others are derived from
-- (session, number). Times are integer milliseconds since the epoch. Payloads are the exact JSON bytes.
-- Rows that may pass 1,000 bytes live in rowid tables: WITHOUT ROWID would spill each to a page of its own.

CREATE TABLE session (
    -- A number is never used twice: what is in memory under it must not meet another session.
    no                   INTEGER PRIMARY KEY AUTOINCREMENT CHECK (no < 2147483648),
    id                   BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    workspace            TEXT NOT NULL UNIQUE,
    agent_space          TEXT NOT NULL,
    root_agent           TEXT NOT NULL,
    model                TEXT NOT NULL,
    created_at_ms        INTEGER NOT NULL,
    updated_at_ms        INTEGER NOT NULL,
    last_message_at_ms   INTEGER,
    message_count        INTEGER NOT NULL DEFAULT 0,
    completed_turn_count INTEGER NOT NULL DEFAULT 0,
    feed_sequence        INTEGER NOT NULL DEFAULT 0,
    message_sequence     INTEGER NOT NULL DEFAULT 0,
    log_sequence         INTEGER NOT NULL DEFAULT 0,
    notice_sequence      INTEGER NOT NULL DEFAULT 0,
    stop_revision        INTEGER NOT NULL DEFAULT 0,
    deleting_at_ms       INTEGER -- set: hidden from everybody, and its rows are being removed
) STRICT;
CREATE INDEX session_deleting ON session (no) WHERE deleting_at_ms IS NOT NULL;

-- One run of one worker process. The credential itself is never stored.
CREATE TABLE generation (
    no                   INTEGER PRIMARY KEY,
    id                   BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    session_no           INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    kind                 TEXT NOT NULL CHECK (kind IN ('native', 'docker')),
    agent_space          TEXT NOT NULL,
    agent_space_revision INTEGER NOT NULL DEFAULT 0,
    state                TEXT NOT NULL CHECK (state IN ('requested', 'starting', 'ready', 'stopping', 'stopped', 'failed')),
    workspace            TEXT NOT NULL,
    credential_sha256    BLOB NOT NULL CHECK (length(credential_sha256) = 32),
    socket_path          TEXT NOT NULL,
    process_id           INTEGER,
    process_started      INTEGER, -- clock ticks since boot: tells a reused pid from the recorded process
    container_id         TEXT,
    image_digest         TEXT,
    failure_detail       TEXT,
    exit_code            INTEGER,
    created_at_ms        INTEGER NOT NULL,
    started_at_ms        INTEGER,
    ended_at_ms          INTEGER
) STRICT;
CREATE INDEX generation_by_session ON generation (session_no, no);
CREATE INDEX generation_open ON generation (state) WHERE state NOT IN ('stopped', 'failed');

-- Texts that many turns share, stored once by their hash. `use` says which session may read one.
CREATE TABLE snapshot (
    no            INTEGER PRIMARY KEY,
    kind          TEXT NOT NULL CHECK (kind IN ('prompt', 'context', 'tools')),
    sha256        BLOB NOT NULL CHECK (length(sha256) = 32),
    content       TEXT NOT NULL,
    manifest      BLOB,
    created_at_ms INTEGER NOT NULL,
    UNIQUE (kind, sha256)
) STRICT;
CREATE TABLE snapshot_use (
    session_no  INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    snapshot_no INTEGER NOT NULL REFERENCES snapshot (no),
    PRIMARY KEY (session_no, snapshot_no)
) STRICT, WITHOUT ROWID;
CREATE INDEX snapshot_use_by_snapshot ON snapshot_use (snapshot_no);

CREATE TABLE turn (
    no                     INTEGER PRIMARY KEY,
    id                     BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    session_no             INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    request_id             BLOB NOT NULL CHECK (length(request_id) = 16),
    workspace              TEXT NOT NULL,
    model                  TEXT NOT NULL,
    state                  TEXT NOT NULL CHECK (state IN ('running', 'completed', 'failed', 'cancelled', 'interrupted')),
    cancel_requested       INTEGER NOT NULL DEFAULT 0,
    failure_classification TEXT NOT NULL DEFAULT '',
    feed_cursor            INTEGER NOT NULL, -- the sequence before this turn's first frame
    context_no             INTEGER REFERENCES snapshot (no),
    prompt_no              INTEGER REFERENCES snapshot (no),
    tools_no               INTEGER REFERENCES snapshot (no),
    generation_no          INTEGER REFERENCES generation (no),
    started_at_ms          INTEGER NOT NULL,
    completed_at_ms        INTEGER
) STRICT;
CREATE INDEX turn_by_session ON turn (session_no, no);
CREATE INDEX turn_running ON turn (session_no) WHERE state = 'running';

-- Accepted messages. (session, frame) makes a resend recognisable; `turn_id` is allocated at acceptance, the turn
-- itself opens later.
CREATE TABLE inbox (
    no           INTEGER PRIMARY KEY,
    session_no   INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    frame_id     BLOB NOT NULL CHECK (length(frame_id) = 16),
    digest       BLOB NOT NULL CHECK (length(digest) = 32),
    request_id   BLOB NOT NULL CHECK (length(request_id) = 16),
    turn_id      BLOB CHECK (length(turn_id) = 16),
    turn_no      INTEGER REFERENCES turn (no),
    execution_no INTEGER REFERENCES execution (no),
    state        TEXT NOT NULL CHECK (state IN ('opening', 'queued', 'delivered', 'undelivered', 'deferred', 'forwarded')),
    content      TEXT NOT NULL,
    settings     BLOB NOT NULL,
    directory    TEXT NOT NULL,
    was_queued   INTEGER NOT NULL DEFAULT 0,
    feed_cursor  INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    UNIQUE (session_no, frame_id)
) STRICT;
CREATE INDEX inbox_by_turn ON inbox (turn_id, no);
CREATE INDEX inbox_opening ON inbox (no) WHERE state IN ('opening', 'deferred');

-- key = session_no << 32 | sequence, in this and the next tables: neighbours in a session are neighbours on disk.
CREATE TABLE message (
    key           INTEGER PRIMARY KEY,
    turn_no       INTEGER NOT NULL REFERENCES turn (no),
    role          TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'tool', 'system')),
    content       TEXT NOT NULL,
    model         TEXT,
    thinking      TEXT,
    tool_calls    BLOB,
    tool_call_id  TEXT,
    is_error      INTEGER NOT NULL DEFAULT 0,
    incomplete    INTEGER NOT NULL DEFAULT 0,
    injected      INTEGER NOT NULL DEFAULT 0,
    injected_kind TEXT,
    compaction_no INTEGER,
    created_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX message_by_turn ON message (turn_no, key);

CREATE TABLE feed (
    key           INTEGER PRIMARY KEY,
    type          TEXT NOT NULL,
    data          BLOB NOT NULL,
    turn_no       INTEGER REFERENCES turn (no),
    inbox_no      INTEGER REFERENCES inbox (no), -- set on userMessage.*: their request is the message's own
    generation_no INTEGER REFERENCES generation (no),
    created_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX feed_by_turn ON feed (turn_no, key) WHERE turn_no IS NOT NULL;

-- The source of the session event log: what happened, and the row that holds it (`ref` is a feed or message sequence).
CREATE TABLE session_log (
    key           INTEGER PRIMARY KEY,
    type          TEXT NOT NULL,
    ref           INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE execution (
    no                INTEGER PRIMARY KEY CHECK (no < 2147483648),
    id                BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    session_no        INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    kind              TEXT NOT NULL CHECK (kind IN ('root', 'child')),
    parent_no         INTEGER REFERENCES execution (no),
    root_no           INTEGER REFERENCES execution (no),
    turn_no           INTEGER NOT NULL REFERENCES turn (no),
    state             TEXT NOT NULL CHECK (state IN ('running', 'paused', 'completed', 'failed', 'cancelled')),
    pause_reason      TEXT,
    control_revision  INTEGER NOT NULL DEFAULT 1,
    stop_revision     INTEGER NOT NULL DEFAULT 0,
    holder            BLOB CHECK (length(holder) = 16),
    generation_no     INTEGER REFERENCES generation (no),
    engine_version    INTEGER NOT NULL,
    round_limit       INTEGER NOT NULL,
    tool_parallelism  INTEGER NOT NULL,
    event_sequence    INTEGER NOT NULL DEFAULT 0,
    context           BLOB,
    output            BLOB,
    completion_sha256 BLOB,
    created_at_ms     INTEGER NOT NULL,
    ended_at_ms       INTEGER
) STRICT;
CREATE INDEX execution_by_session ON execution (session_no, no);
CREATE INDEX execution_by_turn ON execution (turn_no);
CREATE INDEX execution_running ON execution (session_no) WHERE state = 'running';
CREATE INDEX execution_paused ON execution (session_no) WHERE state = 'paused';

-- Steps. key = execution_no << 32 | position of the step, so a step id needs no index of its own.
CREATE TABLE activity (
    key            INTEGER PRIMARY KEY,
    kind           TEXT NOT NULL,
    call_id        TEXT,
    state          TEXT NOT NULL CHECK (state IN ('running', 'completed', 'failed', 'interrupted', 'uncertain')),
    attempt        INTEGER NOT NULL DEFAULT 1,
    generation_no  INTEGER REFERENCES generation (no),
    given          BLOB NOT NULL,
    output         BLOB,
    payload_sha256 BLOB,
    resolution     BLOB,
    started_at_ms  INTEGER NOT NULL,
    ended_at_ms    INTEGER
) STRICT;

-- History of an execution beside its steps: paused, resumed, sealed, resolved. key = execution_no << 32 | sequence.
CREATE TABLE control_event (
    key           INTEGER PRIMARY KEY,
    type          TEXT NOT NULL,
    data          BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE model_run (
    no                     INTEGER PRIMARY KEY CHECK (no < 2147483648),
    id                     BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    session_no             INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    turn_no                INTEGER NOT NULL REFERENCES turn (no),
    execution_no           INTEGER NOT NULL REFERENCES execution (no),
    stage                  TEXT NOT NULL CHECK (stage IN ('turn', 'child', 'compaction')),
    model                  TEXT NOT NULL,
    request_settings       BLOB NOT NULL,
    state                  TEXT NOT NULL CHECK (state IN ('running', 'completed', 'failed', 'cancelled', 'interrupted')),
    finish_reason          TEXT NOT NULL DEFAULT '',
    failure_classification TEXT NOT NULL DEFAULT '',
    failure_detail         TEXT NOT NULL DEFAULT '',
    started_at_ms          INTEGER NOT NULL,
    completed_at_ms        INTEGER
) STRICT;
CREATE INDEX model_run_by_session ON model_run (session_no, no);
CREATE INDEX model_run_by_turn ON model_run (turn_no);

-- One provider round. key = model_run.no << 32 | round * 64 + attempt. The request is named by its parts: the transcript up to
-- `request_sequence` and the prompt and tool snapshots of the turn.
CREATE TABLE model_call (
    key               INTEGER PRIMARY KEY,
    state             TEXT NOT NULL CHECK (state IN ('completed', 'failed', 'cancelled')),
    generation_no     INTEGER REFERENCES generation (no),
    request_sequence  INTEGER NOT NULL,
    response          BLOB,
    response_model    TEXT,
    finish_reason     TEXT,
    prompt_tokens     INTEGER,
    completion_tokens INTEGER,
    reasoning_tokens  INTEGER,
    cache_read_tokens INTEGER,
    cache_write_tokens INTEGER,
    failure_kind      TEXT,
    failure_detail    TEXT,
    started_at_ms     INTEGER NOT NULL,
    completed_at_ms   INTEGER NOT NULL
) STRICT;

CREATE TABLE notice (
    key             INTEGER PRIMARY KEY, -- session_no << 32 | sequence
    type            TEXT NOT NULL,
    source          TEXT NOT NULL,
    summary         TEXT NOT NULL,
    data            BLOB,
    delivery        TEXT NOT NULL CHECK (delivery IN ('queue', 'wake')),
    state           TEXT NOT NULL CHECK (state IN ('pending', 'delivered')),
    created_at_ms   INTEGER NOT NULL,
    delivered_at_ms INTEGER
) STRICT;
CREATE INDEX notice_pending ON notice (key) WHERE state = 'pending';

-- The batch that a turn opened with, in its order: so that the same prompt can be built again.
CREATE TABLE turn_opening_notice (
    turn_no    INTEGER NOT NULL REFERENCES turn (no),
    position   INTEGER NOT NULL,
    notice_key INTEGER NOT NULL REFERENCES notice (key),
    PRIMARY KEY (turn_no, position)
) STRICT, WITHOUT ROWID;
