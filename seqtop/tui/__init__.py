"""What users see: the Textual app. It knows the state, never the wire."""
