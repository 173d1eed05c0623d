"""REST resources as plain functions; each module adds its routes to the router."""
