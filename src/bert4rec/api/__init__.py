"""The front door of the library: what `import bert4rec` offers. The command line calls nothing else."""
