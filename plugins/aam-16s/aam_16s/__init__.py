"""A 16S reference for `aam`: encoders, placement, distances without a tree, search."""
