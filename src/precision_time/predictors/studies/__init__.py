"""Studies of the predictors, one module each: `study(context)` trains, judges and tells (see `predictors.study`)."""
