"""Summaries and runs over HTTP."""
