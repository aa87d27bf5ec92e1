"""Two configurations in, one checklist out: what people have, in one schema, compared item by item."""
