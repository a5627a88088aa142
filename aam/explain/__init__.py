"""Which ASVs, taxa and clades matter to a model: statistics, files, figures and a page."""
