"""A run that ends in time: what a training costs on this machine, and settings that fit into so many minutes."""
