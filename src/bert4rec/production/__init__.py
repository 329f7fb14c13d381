"""A model in service and its successors.

refresh    from what users did to the next model, step by step
successor  whether it may take the place of the one in service
"""
