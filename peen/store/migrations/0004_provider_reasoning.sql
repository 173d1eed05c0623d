-- Reasoning that its provider wants back byte for byte: JSON {upstream, model, items}, shown to nobody.
ALTER TABLE message ADD COLUMN provider_reasoning BLOB;
