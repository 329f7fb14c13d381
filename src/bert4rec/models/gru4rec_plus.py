"""GRU4Rec+ (Hidasi and Karatzoglou, 2018): the network of GRU4Rec with better losses and one table for in- and output.

The losses are in `training.ranking_losses`, the items they are compared with in `training.next_item`.
"""

from bert4rec.models.gru4rec import GRU4Rec


class GRU4RecPlus(GRU4Rec):
    """GRU4Rec whose output compares the state with the input's embeddings."""

    is_tied = True
