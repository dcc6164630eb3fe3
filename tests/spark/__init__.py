"""Tests that start Spark. One session serves the whole folder."""
