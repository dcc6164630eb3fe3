"""The web process: health, browser headers, uploads, signals."""
