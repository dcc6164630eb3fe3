"""The request of a delivery, transforms, and the documented receivers."""
