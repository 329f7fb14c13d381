"""Who may ask, and by which name."""
