"""From publisher to endpoint: messages, deliveries and lines."""
