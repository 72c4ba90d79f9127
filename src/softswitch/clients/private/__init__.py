"""Clients that keep single rows private: clipped sums with noise, and what each of them costs."""
