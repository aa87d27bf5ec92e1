"""Thin callbacks for people who prefer them; `hypocenter run` and `watch` see Trainer and Lightning without any."""
