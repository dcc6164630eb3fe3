"""What `manage.py` can do for the whole installation."""
