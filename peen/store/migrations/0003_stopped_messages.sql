-- A Stop that comes before a message has opened its turn: the turn is never begun, and ends as cancelled.
ALTER TABLE inbox ADD COLUMN is_stopped INTEGER NOT NULL DEFAULT 0;
