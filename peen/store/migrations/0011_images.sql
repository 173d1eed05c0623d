-- Images of messages, as a JSON list of {mediaType, sizeBytes, sha256}; their bytes are blobs of the session. Null where
-- there are none.
ALTER TABLE inbox ADD COLUMN images BLOB;
ALTER TABLE message ADD COLUMN images BLOB;
CREATE INDEX message_with_images ON message (key) WHERE images IS NOT NULL;

-- Images that a provider has refused, each with the turn that failed by it: in the messages of the session up to that
-- sequence a note stands in its place.
CREATE TABLE refused_image (
    no             INTEGER PRIMARY KEY,
    session_no     INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    sha256         BLOB NOT NULL CHECK (length(sha256) = 32),
    up_to_sequence INTEGER NOT NULL,
    turn_no        INTEGER REFERENCES turn (no),
    reason         TEXT NOT NULL,
    at_ms          INTEGER NOT NULL,
    UNIQUE (session_no, sha256)
) STRICT;
