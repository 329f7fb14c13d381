"""What can be set, and where it comes from: defaults, presets, files, single settings. Needs no torch."""
