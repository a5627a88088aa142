"""Reports, tables and figures."""
