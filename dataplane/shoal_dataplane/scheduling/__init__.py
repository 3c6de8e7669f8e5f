"""Who runs with whom, and when. Pure logic: time is an argument."""
