"""Header, tabs, footer and notices: the parts around every screen."""
