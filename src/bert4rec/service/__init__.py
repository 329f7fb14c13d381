"""The HTTP service, and the page that it shows."""
