"""What publishers, subscribers and admins do over HTTP with messages, deliveries and lines."""
