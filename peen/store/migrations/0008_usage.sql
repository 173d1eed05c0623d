-- What a session has used of its models, and how much it may use at most; counted with every call, so that nobody has
-- to add up the history. Tokens are null as long as no provider has reported any. Costs are trillionths of a dollar.
ALTER TABLE session ADD COLUMN prompt_tokens INTEGER;
ALTER TABLE session ADD COLUMN completion_tokens INTEGER;
ALTER TABLE session ADD COLUMN reasoning_tokens INTEGER;
ALTER TABLE session ADD COLUMN cache_read_tokens INTEGER;
ALTER TABLE session ADD COLUMN cache_write_tokens INTEGER;
ALTER TABLE session ADD COLUMN cost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN unpriced_calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN budget_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN budget_cost INTEGER NOT NULL DEFAULT 0;

-- The same of a run up to and with this call: the last call of a run has the sum of all.
ALTER TABLE model_call ADD COLUMN run_prompt_tokens INTEGER;
ALTER TABLE model_call ADD COLUMN run_completion_tokens INTEGER;
ALTER TABLE model_call ADD COLUMN run_reasoning_tokens INTEGER;
ALTER TABLE model_call ADD COLUMN run_cache_read_tokens INTEGER;
ALTER TABLE model_call ADD COLUMN run_cache_write_tokens INTEGER;
ALTER TABLE model_call ADD COLUMN run_cost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE model_call ADD COLUMN run_unpriced_calls INTEGER NOT NULL DEFAULT 0;

-- Calls that were made before have their tokens, but nobody wrote down what they cost.
UPDATE model_call
   SET run_prompt_tokens = s.prompt, run_completion_tokens = s.completion, run_reasoning_tokens = s.reasoning,
       run_cache_read_tokens = s.cache_read, run_cache_write_tokens = s.cache_write, run_unpriced_calls = s.calls
  FROM (SELECT key, sum(prompt_tokens) OVER run AS prompt, sum(completion_tokens) OVER run AS completion,
               sum(reasoning_tokens) OVER run AS reasoning, sum(cache_read_tokens) OVER run AS cache_read,
               sum(cache_write_tokens) OVER run AS cache_write, sum(state = 'completed') OVER run AS calls
          FROM model_call WINDOW run AS (PARTITION BY key >> 32 ORDER BY key)) s
 WHERE s.key = model_call.key;
UPDATE session
   SET prompt_tokens = s.prompt, completion_tokens = s.completion, reasoning_tokens = s.reasoning,
       cache_read_tokens = s.cache_read, cache_write_tokens = s.cache_write, unpriced_calls = s.calls
  FROM (SELECT r.session_no AS no, sum(c.prompt_tokens) AS prompt, sum(c.completion_tokens) AS completion,
               sum(c.reasoning_tokens) AS reasoning, sum(c.cache_read_tokens) AS cache_read,
               sum(c.cache_write_tokens) AS cache_write, sum(c.state = 'completed') AS calls
          FROM model_call c JOIN model_run r ON r.no = c.key >> 32 GROUP BY r.session_no) s
 WHERE s.no = session.no;
