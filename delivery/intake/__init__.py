"""What is sent in, and what is wrong with it before anything is looked up.

`refusals` (one exception for each fact) · `terms` (when it is to be sent) · `drafts` · `payloads` · `raw_json` (the
parts of a batch, byte for byte) · `cloud_event_attributes`, `cloud_event_documents`, `cloud_events` (what
is stored of them) · `idempotency` (the same again gets the same answer).
"""
