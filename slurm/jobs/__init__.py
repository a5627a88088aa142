"""Modules of slurm/generate; they need the standard library only, because login nodes run them."""
