"""A model in service and its successors.

refresh          from what users did to the next model, step by step
refresh_request  what a refresh is asked for, and its folders
successor        whether the new model may take the place of the one in service
"""
