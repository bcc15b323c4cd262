"""How jobs that share a node run beside each other: rates, a fluid model, and what it says of start offsets."""
