"""The test suite's own verdicts: each must be able to fail."""
