"""Scenarios of topics: one subscriber, one line."""
