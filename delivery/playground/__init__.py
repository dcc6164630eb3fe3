"""Try filters and scripts before they are saved (`trials`), and endpoints with test events (`test_events`)."""
