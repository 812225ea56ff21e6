"""The worker: prepares inputs and runs the model on a device."""
