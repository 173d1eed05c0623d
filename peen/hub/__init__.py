"""The door of the controller: HTTP, WebSocket and the in-memory connection, admitted and decoded."""
