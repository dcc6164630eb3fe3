"""The mailbox client, against a played mailbox."""
