"""Losses, the loop, checkpoints and everything that runs a model."""
