"""People of the admin site: login throttle, second factor, sessions."""
