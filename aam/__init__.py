"""Attention All Microbes: transformers for amplicon tables that run right everywhere."""

__version__ = "0.1.0"
