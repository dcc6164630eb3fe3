"""What people see and do in the admin site, in a real browser."""
