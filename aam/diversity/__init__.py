"""Distances and diversities of samples: UniFrac and Faith PD of a batch and of whole tables,
Jaccard.
"""
