"""How a Delta table's columns follow a new definition of its published table. Plans only, no Spark."""
