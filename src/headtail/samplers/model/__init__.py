"""samplers/model."""
