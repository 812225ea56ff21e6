"""The model: layers, attention, weights and sampling."""
