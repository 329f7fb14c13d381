"""What the service holds, measured from outside: `python -m benchmarks.serving`."""
