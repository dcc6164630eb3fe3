"""One-time codes and recovery codes."""
