"""Models behind one Protocol: whatever the provider speaks, the agent loop sees one stream of events."""
