"""What a GPU computes in one pass over memory where torch would take many.

Each operation is a function that is called on any device. Beside it stands its plain equivalent in torch, which runs
where there is no Triton and which tests compare it with. The folder `gpu` holds the kernels themselves; they are
imported only where one runs.
"""
