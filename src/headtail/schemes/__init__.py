"""schemes."""
