"""What a rank does when the doctor examines it: collectives, bandwidth, arithmetic. Needs torch; answers in plain JSON.

`hypocenter doctor` never imports this: it starts `python -m hypocenter.examine` beside itself, with a timeout.
"""
