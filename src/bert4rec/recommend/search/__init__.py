"""The best of many items: found with proof by whole numbers, or in all likelihood by an index; both settled exactly."""
