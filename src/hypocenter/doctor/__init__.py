"""A machine, a node or a whole job in, checks out: toolkits, settings, communication, arithmetic, each with its fix."""
