"""People of the admin site: logins, second factor, sessions, permissions."""
