"""Wiring: settings, urls, celery, wsgi and the one-command stack; knows every app, no app knows it."""

from broker_project.celery import app as celery_app

__all__ = ["celery_app"]
