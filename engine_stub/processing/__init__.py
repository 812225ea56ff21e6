"""Text processing before and after the model."""
