"""Runs of summaries, figures, downloads and the summarize command."""
