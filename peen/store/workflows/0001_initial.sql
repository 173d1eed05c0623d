-- What can be read again from peen.db, arranged for other questions. Losing this file, or finding an older one, changes
-- nothing: at its start the controller compares it with peen.db and writes anew what differs.

-- One stretch of an execution: from its creation or a resumption to the next pause or to its end.
CREATE TABLE run (
    key           INTEGER PRIMARY KEY, -- number of the execution << 32 | number of the run in it, from 1
    generation_id BLOB CHECK (length(generation_id) = 16), -- none: no worker took hold of it
    holder        BLOB CHECK (length(holder) = 16),
    caller        TEXT, -- who let it go on; none for the first
    started_at_ms INTEGER NOT NULL,
    ended_at_ms   INTEGER,
    outcome       TEXT NOT NULL CHECK (outcome IN ('running', 'paused', 'completed', 'failed', 'cancelled')),
    reason        TEXT -- of a pause
) STRICT;

-- How far each execution had come when its runs were written: what differs from peen.db is written anew.
CREATE TABLE seen (
    execution_no   INTEGER PRIMARY KEY,
    execution_id   BLOB NOT NULL CHECK (length(execution_id) = 16),
    event_sequence INTEGER NOT NULL,
    state          TEXT NOT NULL
) STRICT;
CREATE INDEX seen_by_id ON seen (execution_id);
