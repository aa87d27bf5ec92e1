"""What a rank does when the doctor examines it: collectives, bandwidth, arithmetic. Needs torch; answers in plain JSON.

`hypocenter doctor` never imports this: it starts `python -m hypocenter.examine` beside itself, with a timeout. In: one
line of JSON on stdin, the request (`request.py`). Out: lines of JSON on the file descriptor that the request names:
`at` (what it is doing), `reports` (what all ranks found, from the rank that leads), `verdict` and `spoken` (what the
leading rank made of it, for the others).
"""
