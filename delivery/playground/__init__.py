"""Try filters, scripts and test events before they count."""
