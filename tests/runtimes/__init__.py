"""What must hold on every runtime: threads, forks, greenlets, event loops."""
