"""The regions of the screens, each with its stylesheet next to it."""
