-- What of a job's output is not stored: from where on and why, empty where nothing is missing, and how many bytes.
ALTER TABLE job ADD COLUMN output_missing TEXT NOT NULL DEFAULT '';
ALTER TABLE job ADD COLUMN unstored_bytes INTEGER NOT NULL DEFAULT 0;
