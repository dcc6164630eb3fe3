"""What is sent in, and what is wrong with it before anything is looked up.

`refusals` (one exception for each fact) · `terms` (when it is to be sent) · `drafts` · `payloads` · `raw_json` (the
parts of a batch, byte for byte) · `idempotency` (the same again gets the same answer).
"""
