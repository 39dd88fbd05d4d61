"""Live state of workers and of the download process, readable from the trainer."""
