"""The report of one or two recordings as an HTML page that needs nothing else."""
