"""Results: history, status, diagnostics, certificates, run folders, trackers and reports."""
