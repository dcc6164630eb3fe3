"""How lines, queues, callbacks and deliveries stand, and why. Nothing here changes anything."""
