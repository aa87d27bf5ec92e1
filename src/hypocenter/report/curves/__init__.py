"""In: a CurveComparison. Out: the screen of `hypocenter curves`, and a chart as SVG."""
