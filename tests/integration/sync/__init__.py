"""SYNC calls: answers, failures, records, scripts."""
