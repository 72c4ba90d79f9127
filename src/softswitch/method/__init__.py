"""The mathematics of a round: weighting, rules, what the server keeps. Knows no client, no engine, no file."""
