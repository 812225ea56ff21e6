"""The main screen: the sequence table and the details of the selected sequence."""
