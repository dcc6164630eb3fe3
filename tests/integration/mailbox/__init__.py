"""Mailboxes: fetch, long poll, acknowledge, order, purge, expiry."""
