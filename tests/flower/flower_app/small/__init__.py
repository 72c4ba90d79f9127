"""Three sites with a few numbers each: the smallest app that can be deployed."""
