"""Who wants what, and with which keys: configuration over the API and in the admin, matching."""
