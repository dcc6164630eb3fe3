"""Summaries and their runs over HTTP."""
