"""Job scripts for SLURM: the generator, the sites, the templates and the scripts for Cosmos."""
