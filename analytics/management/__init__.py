"""What `manage.py` can do for summaries."""
