"""From original ids to original ids: recommendations of a run or of an exported model."""
