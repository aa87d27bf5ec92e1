"""Any answer in, its rendering out, from its fields: html, markdown, github; JSON is the answer itself."""
