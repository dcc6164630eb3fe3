"""Requests that the API refuses over real HTTP, as tables with the status and code of their answer."""
