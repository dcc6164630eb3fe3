"""Django's PostgreSQL with a pool that asks less: the engine of `DATABASES`."""
