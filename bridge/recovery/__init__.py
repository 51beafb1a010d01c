"""What the warehouse knows of subscriptions, so that a lost state directory can be made anew."""
