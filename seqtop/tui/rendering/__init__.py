"""Lines of styled text, and the widgets that draw them."""
