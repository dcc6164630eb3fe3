"""What `manage.py` can do for deliveries."""
