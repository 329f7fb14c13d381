"""What may be recommended: lists of items, filters on their attributes, diversity; and which models are refused."""
