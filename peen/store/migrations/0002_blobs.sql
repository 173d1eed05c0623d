-- Content-addressed storage: parts of saved values, each stored once by its hash. Blobs live in a rowid table, and apart
-- from their hashes: a row that may pass 1,000 bytes costs a page of its own in a WITHOUT ROWID table.

-- What blobs were compressed with, kept as long as the file. Numbers below 2 say that there was no dictionary.
CREATE TABLE blob_dictionary (
    id   INTEGER PRIMARY KEY CHECK (id >= 2),
    data BLOB NOT NULL
) STRICT;

CREATE TABLE blob (
    id     INTEGER PRIMARY KEY,
    prefix BLOB NOT NULL CHECK (length(prefix) = 4), -- of the hash: finds the row in blobhash when this one goes
    coding INTEGER NOT NULL, -- 0 as it is, 1 zstd, else the dictionary that zstd used
    data   BLOB NOT NULL
) STRICT;

-- No foreign key: removing a blob would look for its id in every row.
CREATE TABLE blobhash (
    hash BLOB PRIMARY KEY CHECK (length(hash) = 32), -- SHA-256 of the bytes before compression
    id   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A session that has sent the bytes may read them, and keeps them here. Not removed with the session by itself: the
-- blobs that it alone uses go first.
CREATE TABLE blob_use (
    session_no INTEGER NOT NULL REFERENCES session (no),
    blob_id    INTEGER NOT NULL REFERENCES blob (id),
    PRIMARY KEY (session_no, blob_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_use_by_blob ON blob_use (blob_id);
