"""The promises, shown."""
