"""Acceptance tests against a whole broker of real processes."""
