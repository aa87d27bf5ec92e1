"""Something readable. In: an open recording and its Diagnosis. Out: text in one of the formats of `formats/`."""
