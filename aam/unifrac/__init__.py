"""UniFrac of a batch and of whole tables."""
