-- A refusal holds for the model that refused: another one may take the image. Those from before are of their turn's model;
-- where there is no turn any more, nobody knows whose they are, and the image is tried once more.
CREATE TABLE refused_image_of_model (
    no             INTEGER PRIMARY KEY,
    session_no     INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    sha256         BLOB NOT NULL CHECK (length(sha256) = 32),
    model          TEXT NOT NULL,
    up_to_sequence INTEGER NOT NULL,
    turn_no        INTEGER REFERENCES turn (no),
    reason         TEXT NOT NULL,
    at_ms          INTEGER NOT NULL,
    UNIQUE (session_no, sha256, model)
) STRICT;
INSERT INTO refused_image_of_model (no, session_no, sha256, model, up_to_sequence, turn_no, reason, at_ms)
SELECT r.no, r.session_no, r.sha256, t.model, r.up_to_sequence, r.turn_no, r.reason, r.at_ms
  FROM refused_image r JOIN turn t ON t.no = r.turn_no;
DROP TABLE refused_image;
ALTER TABLE refused_image_of_model RENAME TO refused_image;

-- Reasoning that its model does not take back any more: in the messages of the session up to that sequence.
CREATE TABLE refused_reasoning (
    no             INTEGER PRIMARY KEY,
    session_no     INTEGER NOT NULL REFERENCES session (no) ON DELETE CASCADE,
    model          TEXT NOT NULL,
    up_to_sequence INTEGER NOT NULL,
    UNIQUE (session_no, model)
) STRICT;
