"""The parts around the body of each screen: header, tabs, notices and footer."""
