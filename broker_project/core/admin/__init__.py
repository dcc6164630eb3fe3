"""Plumbing of the admin that knows no domain: theme, read-only pages, ids."""
