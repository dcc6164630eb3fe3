"""Users of the admin site: `login_throttle`, `mfa` (the second factor), `sessions`, then `views` and `admin`."""
