-- What a step that asks a model has told of its attempts so far, as the JSON of a KeptProgress: whoever ends the step in
-- the place of its worker records these, and no others. Null once the step has ended.
ALTER TABLE activity ADD COLUMN progress BLOB;

-- The HTTP status that an attempt was answered with, and whether some of an answer had come; null where there was none,
-- or nobody wrote it down. How long the next attempt was waited for.
ALTER TABLE model_call ADD COLUMN status INTEGER;
ALTER TABLE model_call ADD COLUMN streamed INTEGER;
ALTER TABLE model_call ADD COLUMN delay_ms INTEGER;

-- What this attempt costs by itself, in trillionths of a dollar, and 1 if that is not all of it, as far as is known.
ALTER TABLE model_call ADD COLUMN cost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE model_call ADD COLUMN unpriced INTEGER NOT NULL DEFAULT 0;

UPDATE model_call
   SET cost = s.cost, unpriced = s.unpriced, delay_ms = s.delay_ms
  FROM (SELECT key, run_cost - lag(run_cost, 1, 0) OVER run AS cost,
               -- An attempt without an answer was taken to be free, unless its tokens were reported. Only a refusal is:
               -- the detail begins so where the answer was an error status, not where one stood inside a stream.
               max(run_unpriced_calls - lag(run_unpriced_calls, 1, 0) OVER run,
                   state <> 'completed' AND NOT (prompt_tokens IS NULL AND completion_tokens IS NULL
                     AND coalesce(failure_detail, '') GLOB 'the provider answered with status [45][0-9][0-9]:*'))
                 AS unpriced,
               CASE WHEN state = 'failed' THEN max(0, lead(started_at_ms) OVER round - completed_at_ms) END AS delay_ms
          FROM model_call
        WINDOW run AS (PARTITION BY key >> 32 ORDER BY key), round AS (PARTITION BY key / 64 ORDER BY key)) s
 WHERE s.key = model_call.key;
UPDATE model_call
   SET run_unpriced_calls = s.unpriced
  FROM (SELECT key, sum(unpriced) OVER (PARTITION BY key >> 32 ORDER BY key) AS unpriced FROM model_call) s
 WHERE s.key = model_call.key;
UPDATE session
   SET unpriced_calls = s.unpriced
  FROM (SELECT r.session_no AS no, sum(c.unpriced) AS unpriced
          FROM model_call c JOIN model_run r ON r.no = c.key >> 32 GROUP BY r.session_no) s
 WHERE s.no = session.no;
