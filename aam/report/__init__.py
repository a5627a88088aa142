"""What a person reads: reports, tables, figures."""
