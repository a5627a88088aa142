"""What slurm/generate is made of; standard library only, because login nodes run it."""
