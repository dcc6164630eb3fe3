"""Scenarios of topics: one subscriber, one line, and a second one for what is tried again apart."""
