-- What was sent to the provider, as a saved value of content-addressed storage: the first call of a run holds a whole
-- list of messages, most later ones hold what was added since. Null where the request is the one of the call before.
ALTER TABLE model_call ADD COLUMN request BLOB;
