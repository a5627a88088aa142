"""Modules of containers/build, containers/run and containers/test; slurm/ shares errors, files and
git with them.

They need Python 3.11 and the standard library only, because login nodes run them: of aam, in the
same repository, they import modules that need nothing else (`aam.files.atomic`,
`aam.device.environment`).
"""
