"""The kernels themselves, in Triton. Imported only where one runs."""
