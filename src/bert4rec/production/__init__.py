"""A model in service and its successors.

refresh    from what users did to the next model, step by step
verdict    whether it may take the place of the one in service
"""
