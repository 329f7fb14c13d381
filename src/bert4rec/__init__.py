"""BERT4Rec: predict what each user does next from what they did before."""

__version__ = "0.1.0"
