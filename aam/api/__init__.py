"""The public Python interface, reached as ``aam.NAME``: the functions of the commands on data in memory."""
