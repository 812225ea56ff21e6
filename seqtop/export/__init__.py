"""The state and recordings in formats for other programs: JSON, CSV, Perfetto, plain text."""
