"""What `manage.py` can do for people and their logins."""
