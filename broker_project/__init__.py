"""Wiring: settings, addresses, Celery, the web server and the one-command stack; `core` is below every app."""
