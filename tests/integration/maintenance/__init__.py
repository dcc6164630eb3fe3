"""What happens by the clock: periodic jobs, Celery beat, retention, expiry."""
