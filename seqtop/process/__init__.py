"""The process itself: arguments, signals, paths of its files, threads."""
