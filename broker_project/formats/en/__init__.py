"""The formats of the one language there is."""
