"""What an agent is told before it starts: layers of files become one frozen prompt."""
