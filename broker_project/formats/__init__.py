"""How times are written, whatever the language: sortable, with seconds, in UTC."""
