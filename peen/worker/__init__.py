"""The process boundary: frames, calls in both directions, and the credential that opens the socket."""
