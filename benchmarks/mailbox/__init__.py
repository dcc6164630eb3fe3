"""Scenarios of mailboxes: how much is fetched, out of how much, and how long those wait who come too early."""
