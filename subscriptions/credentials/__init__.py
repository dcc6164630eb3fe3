"""API keys and signing secrets: tokens, scopes, authentication, issuing and rotation (contract 1.2)."""
