"""`pgbridge check`: what a subscription needs, looked at before anything is created. Rules on facts that were read."""
