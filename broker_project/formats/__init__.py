"""The format of times in every language: sortable, with seconds, in UTC."""
