"""What lies in deploy/ does what it says, as far as that can be tried without a cluster and without images."""
