"""What `manage.py` can do for subscriptions."""
