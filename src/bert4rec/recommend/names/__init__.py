"""Ids and titles of a catalogue, in memory or in files, and how items are found by them."""
