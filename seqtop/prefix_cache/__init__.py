"""Parts that the publishers of engines share, bundled or adapted. Viewers do not import them."""
