"""The microbiome task on the engine: inputs, losses, masks, warm start, saved models and
inference.
"""
