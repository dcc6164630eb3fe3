"""Django's PostgreSQL with the connections of `core.db`."""
