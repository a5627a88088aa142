"""Members of a prediction that learn from which ASVs are present, and their blend."""
