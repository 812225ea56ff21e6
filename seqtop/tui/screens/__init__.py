"""The screens: sequences, and the dialogs on top of it."""
