"""Background commands: they belong to the session, not to the turn that started them."""
