"""All SQL of Peen: one writer a database file, point reads beside it, and one module an aggregate."""
