"""What can be promised: the theorems, plans by them, confidence bounds, certificates."""
