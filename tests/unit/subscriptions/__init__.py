"""Names, endpoints, filters, schemas, scripts and retry policies."""
