"""What this does, in a few minutes: the built-in world, nine models, a page."""
