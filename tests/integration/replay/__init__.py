"""Replays, backfills and resubmitting."""
