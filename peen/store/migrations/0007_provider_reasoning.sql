-- Reasoning that a provider wants back with the next request, as JSON that only its adapter understands.
ALTER TABLE message ADD COLUMN provider_reasoning BLOB;
