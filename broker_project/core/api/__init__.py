"""Plumbing of the API that knows no domain: problems, parsing, pagination, preconditions, fields."""
