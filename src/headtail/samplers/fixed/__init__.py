"""samplers/fixed."""
