"""What leaves seqtop for other programs: the state as JSON."""
