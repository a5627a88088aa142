"""HTFT: two stages of hypertensor units that learn from a language model."""
