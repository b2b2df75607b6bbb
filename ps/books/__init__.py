"""The books of one parameter server: the ledger, the parameters, and the pushes that change both."""
