"""Long polls, documents and receipts."""
