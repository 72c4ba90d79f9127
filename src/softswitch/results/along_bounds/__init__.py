"""What a bound costs: models along several bounds, as a table, a figure and sentences."""
