"""What a run leaves on disk and tells while it goes on: folder, checkpoints, callbacks, trackers, report."""
