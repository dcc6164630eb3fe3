"""The base of the admin site, for all apps: `theme` (widgets and HTML), then `model_admin` (pages and actions)."""
