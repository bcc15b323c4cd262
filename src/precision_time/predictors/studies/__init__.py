"""Studies of the predictors: each trains one, judges it and says what came out."""
