"""A search for better settings: what may change, how the time is spent, what was found and what it is worth."""
