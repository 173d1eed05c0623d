-- Summaries that stand in the place of a session's oldest messages. key = session_no << 32 | number in the session. The
-- messages stay; `message.compaction_no` is the number of the first summary that covers one, and never changes. Each
-- summary begins at the session's first message and takes over from the one before it, so they are a chain.
CREATE TABLE compaction (
    key            INTEGER PRIMARY KEY,
    supersedes     INTEGER UNIQUE REFERENCES compaction (key),
    from_sequence  INTEGER NOT NULL,
    to_sequence    INTEGER NOT NULL CHECK (to_sequence >= from_sequence),
    message_count  INTEGER NOT NULL CHECK (message_count > 0), -- covered by no summary before
    input_tokens   INTEGER NOT NULL,
    summary_tokens INTEGER NOT NULL,
    model          TEXT NOT NULL,
    prompt_no      INTEGER NOT NULL REFERENCES snapshot (no),
    summary        TEXT NOT NULL,
    created_at_ms  INTEGER NOT NULL
) STRICT;
