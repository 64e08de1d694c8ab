"""What will I get? Predicted step times, from a model of the exchange of gradients."""
