"""`peen doctor`: looks at everything that a controller needs, and changes nothing."""
