"""The block map screen."""
