"""ASVs and taxa that matter to a model: statistics, files, figures and a page."""
