"""Speed and memory on this machine; run with `make bench`."""
