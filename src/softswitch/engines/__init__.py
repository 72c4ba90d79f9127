"""What moves data through rounds: the compiled engine, and Flower."""
