"""The main screen: the sequence table and the detail of the selected sequence."""
