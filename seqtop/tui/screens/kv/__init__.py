"""The app for engines that publish KV-cache events and nothing else."""
