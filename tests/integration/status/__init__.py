"""How things stand: lines, queues, deliveries, dead letters, explanations."""
