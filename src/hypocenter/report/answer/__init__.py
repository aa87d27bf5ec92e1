"""Any answer in, its rendering out, one file = one format: html, markdown, github; JSON is the answer itself."""
