-- Until when whoever holds an execution may be silent, and until when a running step may be completed: milliseconds of
-- the controller's own clock, which mean nothing to another controller.
ALTER TABLE execution ADD COLUMN lease_until_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE activity ADD COLUMN lease_until_ms INTEGER NOT NULL DEFAULT 0;
