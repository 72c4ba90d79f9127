"""How far an answer is from the best possible one: a lower bound on F*."""
