"""How models learn: Cloze, next item, pairs; the batches and the losses of each."""
