"""Commands around a running service."""
