"""What is laid into the engines' own processes; it imports nothing of kvroad."""
