"""The theorems as functions, their constants measured, and plans by them."""
