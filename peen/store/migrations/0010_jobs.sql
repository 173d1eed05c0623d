-- Commands. Every one has a row before its process starts; one whose handle was returned to the model is detached: its
-- end is news, while the end of any other is told by the call itself.
CREATE TABLE job (
    no             INTEGER PRIMARY KEY CHECK (no < 2147483648),
    id             BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    session_no     INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    turn_no        INTEGER NOT NULL REFERENCES turn (no),
    execution_no   INTEGER NOT NULL REFERENCES execution (no), -- the run that started it
    generation_no  INTEGER NOT NULL REFERENCES generation (no),
    call_id        TEXT NOT NULL,
    pid            INTEGER CHECK (pid > 0), -- null until the process is known to have started
    purpose        TEXT NOT NULL,
    command        TEXT NOT NULL,
    directory      TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('running', 'exited', 'signalled', 'failed', 'interrupted')),
    exit_code      INTEGER NOT NULL DEFAULT -1,
    failure_detail TEXT NOT NULL DEFAULT '',
    is_detached    INTEGER NOT NULL DEFAULT 0,
    line_count     INTEGER NOT NULL DEFAULT 0,
    byte_count     INTEGER NOT NULL DEFAULT 0,
    started_at_ms  INTEGER NOT NULL,
    ended_at_ms    INTEGER
) STRICT;
CREATE INDEX job_by_session ON job (session_no, no);
CREATE INDEX job_running ON job (session_no, generation_no) WHERE state = 'running';

-- What jobs print, in the order in which it came, both streams in one. key = job.no << 32 | number of the first line.
-- `line_index` has four bytes a line (little endian): length << 2 | whether the line goes on in a later one << 1 | stream.
CREATE TABLE job_output (
    key           INTEGER PRIMARY KEY,
    streams       INTEGER NOT NULL CHECK (streams IN (1, 2, 3)), -- 1: holds lines of stdout, 2: of stderr
    line_index    BLOB NOT NULL,
    data          BLOB NOT NULL CHECK (length(data) <= 65536),
    created_at_ms INTEGER NOT NULL
) STRICT;

-- Every request for a signal, also one that came too late. key = job.no << 32 | number of the request.
CREATE TABLE job_signal (
    key              INTEGER PRIMARY KEY,
    signal           TEXT NOT NULL CHECK (signal IN ('stop', 'kill')),
    accepted         INTEGER NOT NULL,
    state_at_request TEXT NOT NULL,
    requested_at_ms  INTEGER NOT NULL
) STRICT;
