"""What rows that were not trained on say of every client: limits of one client, and certificates of all."""
