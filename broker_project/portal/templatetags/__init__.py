"""Tags of the portal's templates."""
