-- Paused work that somebody has asked to go on while another turn ran. A row goes with the resumption, with a Stop, and
-- with any other decision that changes the control revision it was given for.
CREATE TABLE admission (
    no               INTEGER PRIMARY KEY, -- they go on in this order
    session_no       INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    execution_no     INTEGER NOT NULL UNIQUE REFERENCES execution (no) ON DELETE CASCADE,
    control_revision INTEGER NOT NULL,
    caller           TEXT NOT NULL,
    is_automatic     INTEGER NOT NULL DEFAULT 0,
    provenance       BLOB NOT NULL,
    created_at_ms    INTEGER NOT NULL
) STRICT;
CREATE INDEX admission_by_session ON admission (session_no, no);
