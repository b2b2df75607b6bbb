"""The books of a parameter server: the ledger, the parameters, the pushes that change both."""
